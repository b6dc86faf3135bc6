//! Forms as clients send them, and malformed ones.

use proptest::prelude::*;

use super::*;
use crate::replay::matching::{CallHash, Divergence, Grade, MatchOutcome, Matching, RecordedCall, Rules};

const KEY: [u8; 32] = [3; 32];
const ROUTE: &str = "POST openai /v1/files";

fn form(boundary: &str, parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, content) in parts {
        let head = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
        body.extend([head.as_bytes(), content, b"\r\n"].concat());
    }
    body.extend(format!("--{boundary}--\r\n").bytes());
    body
}

fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    Multipart::parse(body)?.write(&mut out);
    Some(out)
}

#[track_caller]
fn same(a: &[u8], b: &[u8]) -> bool {
    let (a, b) = (canonical(a), canonical(b));
    assert!(a.is_some() && b.is_some(), "both bodies must be forms");
    a == b
}

fn asked(recorded: &[u8], asked: &[u8]) -> MatchOutcome {
    let exact = CallHash::new(&KEY, ROUTE, recorded);
    let call = RecordedCall { seq: 1, name: ROUTE.to_owned(), exact, begun_ns: 0, ended_ns: 1, arrived: 0 };
    let recorded = recorded.to_vec();
    let mut matching = Matching::new(vec![call], move |_| Ok(recorded.clone()), Rules::none(), KEY).unwrap();
    matching.ask(ROUTE, asked).unwrap()
}

fn diverged(recorded: &[u8], other: &[u8]) -> Divergence {
    match asked(recorded, other) {
        MatchOutcome::Diverged(divergence) => *divergence,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn boundary_does_not_count_and_parts_do() {
    let parts: [(&str, &[u8]); 2] = [("model", b"m"), ("file", b"\x00\xff\r\n--aa\r\n")];
    let a = form("first-boundary", &parts);
    assert!(same(&a, &form("second'()+_,-./:=?", &parts)));
    for other in [
        form("b", &[("model", b"m"), ("file", b"\x00\xff\r\n--aa\r\n ")]),
        form("b", &[("model", b"m"), ("name", b"\x00\xff\r\n--aa\r\n")]),
        form("b", &[("file", b"\x00\xff\r\n--aa\r\n"), ("model", b"m")]),
        form("b", &[("model", b"m")]),
        form("b", &[("model", b""), ("file", b"m\x00\xff\r\n--aa\r\n")]),
    ] {
        assert!(!same(&a, &other));
    }
    let spelt = String::from_utf8(form("b", &[("x", b"1")])).unwrap();
    let other =
        spelt.replace("Content-Disposition: ", "content-disposition:").replace("--b\r\n", "--b \t\r\n");
    assert!(same(spelt.as_bytes(), other.as_bytes()));
}

#[test]
fn boundary_inside_of_content_ends_no_part() {
    let content = b"x--bb\r\n--bbb\r\n--bb-\r\n--bbx--\r\n --bb--";
    let body = form("bb", &[("a", content), ("b", b"2")]);
    let parsed = Multipart::parse(&body).unwrap();
    assert_eq!((parsed.parts.len(), parsed.parts[1].name()), (2, "b"));
    // A line that equals the whole boundary ends the part; no client puts such a line into its content.
    let split = form("bb", &[("a", b"1\r\n--bb\r\nX: y\r\n\r\n2")]);
    assert_eq!(Multipart::parse(&split).unwrap().parts.len(), 2);
}

#[test]
fn form_that_is_cut_off_keeps_its_parts_and_differs() {
    let parts: [(&str, &[u8]); 2] = [("a", b"1"), ("b", b"2")];
    let cut = |boundary: &str| {
        let body = form(boundary, &parts);
        let end = body.len() - boundary.len() - "\r\n----\r\n".len();
        body[..end].to_vec()
    };
    assert!(cut("b1").ends_with(b"\r\n\r\n2"));
    assert!(same(&cut("b1"), &cut("b22")));
    assert!(!same(&cut("b1"), &form("b1", &parts)));
    assert_eq!(asked(&cut("b1"), &cut("b22")), MatchOutcome::Matched(1));
    let found = diverged(&form("b1", &parts), &cut("b22"));
    assert_eq!(found.nearest[0].differences[0].path, "body's end");
    let trailing = [&form("b1", &parts)[..], b"more"].concat();
    assert!(!same(&trailing, &form("b1", &parts)));
}

#[test]
fn form_without_parts_is_one_and_dashes_are_not() {
    assert!(same(b"--0123456789--\r\n", b"--abcdefghijklmnop--"));
    for text in
        [&b"--a--\r\n"[..], b"--", b"----", b"-- --", b"--x\r\n", b"--x\r\n\r\ntext", b"--x\r\nA: b\r\n\r\n"]
    {
        assert_eq!(Multipart::parse(text), None, "{:?}", String::from_utf8_lossy(text));
    }
    let other_kind = b"--0123456789\r\nContent-Type: text/plain\r\n\r\nx\r\n--0123456789--";
    assert_eq!(Multipart::parse(other_kind), None, "the first part shows that it is not a form");
}

#[test]
fn nested_forms_are_compared_by_their_parts() {
    let nested = |outer: &str, inner: &str, text: &str| {
        let content = String::from_utf8(form(inner, &[("deep", text.as_bytes())])).unwrap();
        let head = format!(
            "--{outer}\r\nContent-Disposition: form-data; name=\"files\"\r\nContent-Type: multipart/mixed; boundary=\"{inner}\"; x=1\r\n\r\n"
        );
        format!("{head}{content}\r\n--{outer}--\r\n").into_bytes()
    };
    let a = nested("oo", "ii", "text");
    assert!(same(&a, &nested("o2", "m", "text")));
    let found = diverged(&a, &nested("o2", "m", "test"));
    assert_eq!(found.nearest[0].differences[0].path, "part 1 \"files\", part 1 \"deep\" content");
    // Forms nested deeper than the limit are compared as bytes, in linear time.
    let mut body = b"x".to_vec();
    for depth in 0..200 {
        let head = format!(
            "--b{depth}\r\nContent-Disposition: form-data; name=\"n\"\r\nContent-Type: multipart/mixed; boundary=b{}\r\n\r\n",
            depth - 1
        );
        body = [head.as_bytes(), &body, format!("\r\n--b{depth}--\r\n").as_bytes()].concat();
    }
    assert!(Multipart::parse(&body).is_some());
}

#[test]
fn part_that_differs_is_named() {
    let file = |boundary: &str, name: &str, kind: &str, content: &[u8]| {
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--{boundary}\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: {kind}\r\n\r\n"
        );
        [head.as_bytes(), content, format!("\r\n--{boundary}--\r\n").as_bytes()].concat()
    };
    let recorded = file("b1", "a.jsonl", "text/plain", b"some bytes of a file, \xff and more");
    for (other, path) in [
        (
            file("b2", "b.jsonl", "text/plain", b"some bytes of a file, \xff and more"),
            "part 2 \"file\" content-disposition",
        ),
        (
            file("b2", "a.jsonl", "text/html", b"some bytes of a file, \xff and more"),
            "part 2 \"file\" content-type",
        ),
        (
            file("b2", "a.jsonl", "text/plain", b"some bytes of a file, \xfe and more"),
            "part 2 \"file\" content",
        ),
    ] {
        let found = diverged(&recorded, &other);
        assert_eq!(found.grade, Grade::Changed, "{found}");
        let paths: Vec<_> = found.nearest[0].differences.iter().map(|of| of.path.as_str()).collect();
        assert_eq!(paths, [path]);
    }
    let more = form("b", &[("a", b"long enough to be near"), ("b", b"2"), ("c", b"3")]);
    let found = diverged(&form("c", &[("a", b"long enough to be near"), ("c", b"3")]), &more);
    let first = &found.nearest[0].differences[0];
    assert_eq!((first.path.as_str(), first.asked.as_str()), ("part 2 \"b\"", "2"));
    let id = |id: &str| form("x", &[("metadata", format!("upload {id} of a long form").as_bytes())]);
    let drawn =
        diverged(&id("3f2a5c1e-0000-4abc-8def-0123456789ab"), &id("4f2a5c1e-0000-4abc-8def-0123456789ac"));
    assert!(drawn.looks_drawn() && drawn.differs_in_a_number(), "{drawn}");
    let rolled = diverged(&id("of the 3 dice"), &id("of the 5 dice"));
    assert!(rolled.differs_in_a_number() && !rolled.looks_drawn(), "{rolled}");
    let reworded = diverged(&id("of the red dice"), &id("of the blue dice"));
    assert!(!reworded.differs_in_a_number(), "{reworded}");
}

/// A body of 10,000 parts is compared. A body with too many parts, or that only seems to have many, takes
/// linear time.
#[test]
fn ten_thousand_parts_are_compared_and_hostile_ones_do_not_hurt() {
    let contents: Vec<(String, Vec<u8>)> =
        (0..10_000).map(|n| (format!("f{n}"), format!("content {n}").into_bytes())).collect();
    let parts: Vec<(&str, &[u8])> =
        contents.iter().map(|(name, of)| (name.as_str(), of.as_slice())).collect();
    let (a, b) = (form("a", &parts), form("another", &parts));
    assert_eq!(asked(&a, &b), MatchOutcome::Matched(1));
    let mut other = parts.clone();
    other[7_777].1 = b"changed";
    let found = diverged(&a, &form("b", &other));
    assert_eq!(found.nearest[0].differences[0].path, "part 7778 \"f7777\" content");
    let empty: Vec<(&str, &[u8])> = vec![("", b""); PARTS_MAX + 1];
    assert_eq!(canonical(&form("b", &empty)), None);
    assert!(canonical(&form("b", &empty[1..])).is_some());
    // Each of these lines is almost a boundary.
    let head = b"--b\r\nContent-Disposition: form-data\r\n\r\n";
    for almost in [&b"\r\n--bb"[..], b"\r\n--b", b"\r\n--b ", b"\r\n--b\t\t\t\r", b"--b\r\n"] {
        let body = [&head[..], &almost.repeat(200_000)].concat();
        assert!(Multipart::parse(&body).is_none_or(|form| !form.is_closed));
    }
    let headers = [&head[..head.len() - 2], &b"X: y\r\n".repeat(100_000)].concat();
    assert_eq!(Multipart::parse(&headers), None, "the headers do not end");
}

proptest! {
    #[test]
    fn equal_parts_are_equal_forms_and_others_are_not(
        a in prop::collection::vec(("[a-z]{0,3}", prop::collection::vec(any::<u8>(), 0..9)), 1..4),
        b in prop::collection::vec(("[a-z]{0,3}", prop::collection::vec(any::<u8>(), 0..9)), 1..4),
    ) {
        let of = |boundary: &str, parts: &[(String, Vec<u8>)]| {
            let parts: Vec<_> = parts.iter().map(|(name, of)| (name.as_str(), of.as_slice())).collect();
            form(boundary, &parts)
        };
        prop_assert!(same(&of("boundary-one", &a), &of("two-boundary", &a)));
        prop_assert_eq!(same(&of("boundary-one", &a), &of("two-boundary", &b)), a == b);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(pieces in prop::collection::vec(
        prop::sample::select(vec!["--", "b", "\r\n", "Content-Disposition: form-data", ":", ";", "\"", " ",
            "\r\n--b\r\n", "\r\n--b--", "--b\r\n", "content-type: multipart/mixed; boundary=", "\u{e9}"]), 0..30)) {
        let body = format!("--b\r\n{}", pieces.concat());
        let _ = canonical(body.as_bytes());
        let _ = canonical(pieces.concat().as_bytes());
    }
}
