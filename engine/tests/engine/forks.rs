//! Forks: what they share, that parents stay unchanged, and what forks cost.

use annals::{Component, ErrorKind, Frame, RunSpec, Status, Store};

use crate::support::{
    GrowingConversation, assert_whole, bodies, delete_tables, frames, fresh, record, recorded,
};

#[test]
fn a_fork_shares_up_to_its_frame_and_its_parent_stays_as_it_was() {
    let (dir, store, space) = fresh();
    let (run, mut talk) = recorded(&space, "parent", 10);
    let ended = run.end(Status::Ok).unwrap();
    let before = frames(&space.run("parent").unwrap());
    let fork = space.fork("parent", 7, false, RunSpec::new("fork")).unwrap();
    let edit = space.fork("parent", 7, true, RunSpec::new("edit")).unwrap();
    record(&fork, &mut talk, 3);
    assert_eq!(
        edit.record(Frame::new(Component::Llm, before[6].input.clone(), "another answer")).unwrap(),
        7
    );
    fork.end(Status::Failed).unwrap();
    edit.end(Status::Ok).unwrap();
    let check = |store: &Store| {
        let space = store.namespace("default").unwrap();
        assert_eq!(frames(&space.run("parent").unwrap()), before);
        assert_eq!(space.run("parent").unwrap().info(), &ended);
        let fork = space.run("fork").unwrap();
        let of_fork = frames(&fork);
        assert_eq!((of_fork.len(), &of_fork[..7]), (10, &before[..7]));
        assert_ne!(of_fork[7].output, before[7].output);
        let point = fork.info().parent.clone().unwrap();
        assert_eq!((point.run.as_deref(), point.at, point.shared), (Some("parent"), 7, 7));
        let edit = space.run("edit").unwrap();
        let of_edit = frames(&edit);
        assert_eq!((of_edit.len(), &of_edit[..6]), (7, &before[..6]));
        assert_eq!((&of_edit[6].input, &of_edit[6].output[..]), (&before[6].input, &b"another answer"[..]));
        let point = edit.info().parent.clone().unwrap();
        assert_eq!((point.at, point.shared), (7, 6));
        assert_eq!(fork.frame(3).unwrap(), before[2]);
        assert_whole(store);
    };
    check(&store);
    store.close().unwrap();
    check(&Store::open_read_only(dir.path().join("s")).unwrap());
    delete_tables(&dir.path().join("s"));
    check(&Store::open_read_only(dir.path().join("s")).unwrap());
}

#[test]
fn an_edit_of_the_first_frame_shares_nothing() {
    let (_dir, _store, space) = fresh();
    recorded(&space, "parent", 3);
    let edit = space.fork("parent", 1, true, RunSpec::new("edit")).unwrap();
    assert_eq!(space.run("edit").unwrap().info().frames, 0);
    assert_eq!(edit.record(Frame::new(Component::User, "x", "y")).unwrap(), 1);
    assert_eq!(bodies(&space.run("edit").unwrap()), [(b"x".to_vec(), b"y".to_vec())]);
}

#[test]
fn a_fork_of_a_fork_reads_frames_and_states_through_its_lineage() {
    let (_dir, store, space) = fresh();
    let (run, _) = recorded(&space, "a", 4);
    run.snapshot("state of a after 4", &[("embedder", &[0.5, -1.0])]).unwrap();
    record(&run, &mut GrowingConversation::new("a more"), 4);
    run.snapshot("state of a after 8", &[]).unwrap();
    let b = space.fork("a", 6, false, RunSpec::new("b")).unwrap();
    record(&b, &mut GrowingConversation::new("b"), 4);
    b.snapshot("state of b after 10", &[]).unwrap();
    let c = space.fork("b", 8, false, RunSpec::new("c")).unwrap();
    record(&c, &mut GrowingConversation::new("c"), 2);
    let d = space.fork("b", 3, false, RunSpec::new("d")).unwrap();
    record(&d, &mut GrowingConversation::new("d"), 3);
    let (a, b) = (frames(&space.run("a").unwrap()), frames(&space.run("b").unwrap()));
    let reader = space.run("c").unwrap();
    let c = frames(&reader);
    assert_eq!((&b[..6], &c[..6], &c[6..8], c.len()), (&a[..6], &a[..6], &b[6..8], 10));
    assert_eq!(reader.snapshot(4).unwrap().embeddings, [("embedder".to_owned(), vec![0.5, -1.0])]);
    let state = |seq| reader.snapshot_at(seq).unwrap().map(|s| (s.seq, String::from_utf8(s.state).unwrap()));
    assert_eq!(state(3), None);
    for seq in 4..=10 {
        // Frames of b after 10 and of a after 8 are not in c's lineage.
        assert_eq!(state(seq), Some((4, "state of a after 4".into())), "{seq}");
    }
    assert_eq!(reader.snapshot(8).unwrap_err().kind(), ErrorKind::NotFound);
    let d = frames(&space.run("d").unwrap());
    assert_eq!((&d[..3], d.len()), (&a[..3], 6));
    assert_eq!(space.run("d").unwrap().snapshot_at(6).unwrap(), None);
    assert_eq!(space.run("b").unwrap().snapshot_at(10).unwrap().unwrap().state, b"state of b after 10");
    assert_whole(&store);
}

#[test]
fn a_fork_has_the_fingerprint_of_the_same_frames_recorded_alone() {
    let (_dir, _store, space) = fresh();
    let (_run, _) = recorded(&space, "parent", 6);
    let fork = space.fork("parent", 4, false, RunSpec::new("fork")).unwrap();
    record(&fork, &mut GrowingConversation::new("another way"), 3);
    let forked = fork.end(Status::Ok).unwrap();
    let alone = space.begin_run(RunSpec::new("alone").model("m").tag("some", "tag")).unwrap();
    record(&alone, &mut GrowingConversation::new("parent"), 4);
    record(&alone, &mut GrowingConversation::new("another way"), 3);
    assert_eq!(alone.link(), forked.fingerprint.unwrap());
    assert_eq!(alone.end(Status::Failed).unwrap().fingerprint, forked.fingerprint);
    let other = space.fork("parent", 4, false, RunSpec::new("other")).unwrap();
    record(&other, &mut GrowingConversation::new("another way"), 2);
    assert_ne!(other.end(Status::Ok).unwrap().fingerprint, forked.fingerprint);
}

#[test]
fn shared_frames_outlive_replaced_parent() {
    let (_dir, store, space) = fresh();
    let (run, _) = recorded(&space, "parent", 5);
    run.end(Status::Ok).unwrap();
    drop(run);
    let before = frames(&space.run("parent").unwrap());
    let fork = space.fork("parent", 5, false, RunSpec::new("fork")).unwrap();
    let anew = space.begin_run(RunSpec::new("parent").replace(true)).unwrap();
    anew.record(Frame::new(Component::User, "new", "new")).unwrap();
    assert_eq!(frames(&space.run("fork").unwrap()), before);
    assert_eq!(space.run("fork").unwrap().info().parent.as_ref().unwrap().run, None);
    assert_eq!(fork.record(Frame::new(Component::Llm, before[4].input.clone(), "6")).unwrap(), 6);
    assert_whole(&store);
}

/// Regression: readers saw that a run had ended a moment before its name was free, and a run that replaces it
/// was refused, with the advice to replace it.
#[test]
fn run_that_is_seen_to_have_ended_can_be_replaced() {
    let (_dir, store, space) = fresh();
    for round in 0..300 {
        let run = space.begin_run(RunSpec::new("r").replace(true)).unwrap();
        run.record(Frame::new(Component::User, "in", "out")).unwrap();
        let open = space.begin_run(RunSpec::new("r").replace(true)).unwrap_err();
        assert_eq!(open.kind(), ErrorKind::Conflict);
        assert!(open.to_string().contains("is being recorded"), "{open}");
        std::thread::scope(|scope| {
            scope.spawn(|| if round % 2 == 0 { drop(run.end(Status::Ok)) } else { run.abandon().unwrap() });
            while space.run("r").unwrap().info().status == Status::Open {
                std::thread::yield_now();
            }
            let anew = space.begin_run(RunSpec::new("r").replace(true)).unwrap();
            assert_eq!(anew.end(Status::Ok).unwrap().frames, 0);
        });
    }
    assert_whole(&store);
}

#[test]
fn a_fork_needs_a_frame_that_is_there_and_finished() {
    let (_dir, store, space) = fresh();
    let (run, _) = recorded(&space, "r", 3);
    let refused = |run: &str, at, edit, spec| space.fork(run, at, edit, spec).map(drop).unwrap_err().kind();
    assert_eq!(refused("r", 0, false, RunSpec::new("f")), ErrorKind::NotFound);
    assert_eq!(refused("r", 4, false, RunSpec::new("f")), ErrorKind::NotFound);
    assert_eq!(refused("none", 1, false, RunSpec::new("f")), ErrorKind::NotFound);
    assert_eq!(refused("r", 1, false, RunSpec::new("r").replace(true)), ErrorKind::Invalid);
    let open = run.begin_frame(&Frame::new(Component::Llm, "streamed", "")).unwrap();
    let after = run.record(Frame::new(Component::Tool, "meanwhile", "done")).unwrap();
    // Frame 4 is unfinished and will change: a fork's chain must not build on it.
    assert_eq!(refused("r", open.seq(), false, RunSpec::new("f")), ErrorKind::Conflict);
    assert_eq!(refused("r", after, false, RunSpec::new("f")), ErrorKind::Conflict);
    let edit = space.fork("r", open.seq(), true, RunSpec::new("f")).unwrap();
    open.append(b"now it is here").unwrap();
    open.finish(false).unwrap();
    edit.record(Frame::new(Component::Llm, "streamed", "otherwise")).unwrap();
    let fork = space.fork("r", after, false, RunSpec::new("g")).unwrap();
    fork.record(Frame::new(Component::User, "go", "on")).unwrap();
    assert_whole(&store);
}

#[test]
fn a_hundred_forks_cost_under_100_kb() {
    let (dir, store, space) = fresh();
    let (run, _) = recorded(&space, "parent", 100);
    run.end(Status::Ok).unwrap();
    store.close().unwrap();
    let path = dir.path().join("s");
    let disk = || Store::open_read_only(&path).unwrap().stats().unwrap().disk_bytes;
    let before = disk();
    let store = Store::open(&path).unwrap();
    let space = store.namespace("default").unwrap();
    for i in 0..100 {
        space
            .fork("parent", i % 100 + 1, i % 2 == 0, RunSpec::new(format!("fork-{i}")))
            .unwrap()
            .end(Status::Ok)
            .unwrap();
    }
    store.close().unwrap();
    let cost = disk() - before;
    println!("100 forks cost {cost} bytes beside {before}");
    assert!(cost < 100_000, "100 forks cost {cost} bytes");
    let store = Store::open_read_only(&path).unwrap();
    let stats = store.stats().unwrap();
    assert_eq!((stats.runs, stats.frames), (101, 100));
    assert_whole(&store);
}
