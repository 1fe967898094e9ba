//! Shards that were damaged after they were written, and keep their length.

use super::*;

/// Changes the first token of a token file of shards. Only its content hash tells.
fn damage(file: &Path) {
    let first = TokenSet::open(file).unwrap().files().next().unwrap().1.tokens_offset;
    let mut bytes = std::fs::read(file).unwrap();
    bytes[usize::try_from(first).unwrap()] ^= 1;
    std::fs::write(file, bytes).unwrap();
    TokenSet::open(file).unwrap();
}

/// Calls `test` with a division whose shards are made, and their folder.
fn divided(test: impl FnOnce(&Assignment<'_>, &Path)) {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 200);
    let router = fitted(&file, TOPICS);
    let out = folder.path().join("train");
    let assignment = Assignment::new(&Histogram, "seed", &router, &file, &out).reserve(0.2, 7);
    assignment.run(&mut silent).unwrap();
    test(&assignment, &out);
}

#[test]
fn shards_with_another_content_are_made_again() {
    divided(|assignment, out| {
        let whole = bytes_of(out);
        for name in ["path-001/00000.h5", "router/00000.h5"] {
            damage(&out.join(name));
            assert!(!assignment.run(&mut silent).unwrap().skipped, "{name}");
            assert_eq!(bytes_of(out), whole, "{name}");
        }
        assert!(assignment.run(&mut silent).unwrap().skipped);

        damage(&out.join("path-002/00000.h5"));
        assert_eq!(assignment.part(WorkPart::WHOLE, &mut silent).unwrap(), 200);
        assert!(!out.join("shards.json").exists(), "the part was made, and nothing is listed yet");
        assignment.run(&mut silent).unwrap();
        assert_eq!(bytes_of(out), whole);
    });
}

#[test]
fn the_check_of_the_shards_tells_its_bytes_and_can_be_stopped() {
    divided(|assignment, out| {
        let whole = bytes_of(out);
        let mut steps = Vec::new();
        let mut seen = |step| {
            steps.push(step);
            ControlFlow::Continue(())
        };
        assert!(assignment.run(&mut seen).unwrap().skipped);
        let last = steps.last().copied();
        assert!(
            matches!(last, Some(RoutingProgress::VerifyShards { done, total }) if done == total),
            "{steps:?}"
        );
        assert!(steps.iter().all(|step| matches!(step, RoutingProgress::VerifyShards { .. })), "{steps:?}");

        let stopped = assignment.run(&mut |_| ControlFlow::Break(()));
        assert!(matches!(stopped, Err(RoutingError::Cancelled)));
        assert_eq!(bytes_of(out), whole);
    });
}
