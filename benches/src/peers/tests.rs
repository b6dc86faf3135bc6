//! Each peer returns what it was given, also after a close. Otherwise its figures mean nothing.

use super::{Durability, PeerSettings, ValueSizes, all_peers, bytes_on_disk};

#[test]
fn every_peer_keeps_what_it_is_given() {
    let big = vec![b'x'; 800_000];
    for (name, open) in all_peers() {
        for durability in [Durability::Disk, Durability::Process] {
            for values in [ValueSizes::Large, ValueSizes::Small] {
                let folder = tempfile::tempdir().unwrap();
                let settings = PeerSettings { durability, values };
                let mut peer = open(folder.path(), settings);
                peer.put(&[(b"b", &big), (b"a", b"one"), (b"c", b"")]);
                peer.put(&[(b"a", b"two!")]);
                if let Some(mut other) = peer.share() {
                    other.put(&[(b"d", b"shared")]);
                } else {
                    peer.put(&[(b"d", b"shared")]);
                }
                for reopened in [false, true] {
                    if reopened {
                        peer.close();
                        peer = open(folder.path(), settings);
                    }
                    let what = format!("{name}, {settings:?}, reopened: {reopened}");
                    assert_eq!(peer.get(b"a").as_deref(), Some(&b"two!"[..]), "{what}");
                    assert!(peer.get(b"b") == Some(big.clone()), "{what}");
                    assert_eq!(peer.get(b"c"), Some(vec![]), "{what}");
                    assert_eq!(peer.get(b"none"), None, "{what}");
                    assert_eq!(peer.scan(), 800_000 + 4 + 6, "{what}");
                }
                peer.close();
                assert!(bytes_on_disk(folder.path()) > 0, "{name}");
            }
        }
    }
}
