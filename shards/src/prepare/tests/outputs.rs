//! What else may lie in the folder of the outputs, and how a repeated preparation reads what lies there.

use super::*;

#[test]
fn folders_of_other_programs_stay_beside_the_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let input = corpus(folder.path());
    let out = folder.path().join("out");
    let pieces = out.join("pieces");
    let foreign = pieces.join(".rsync-partial");
    std::fs::create_dir_all(&foreign).unwrap();
    std::fs::write(foreign.join("00000-train.h5"), "part of a file").unwrap();
    std::fs::write(pieces.join("00007-train.h5"), "a piece of other text").unwrap();
    run(&config(), &[input], &out).unwrap();
    assert_eq!(names_in(&pieces), [".rsync-partial", "00000-train.h5", "00000-validation.h5"]);
    assert_eq!(names_in(&foreign), ["00000-train.h5"]);
}

#[test]
fn a_repeated_preparation_can_be_cancelled_while_it_reads_its_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = [corpus(folder.path())];
    let out = folder.path().join("out");
    run(&config(), &inputs, &out).unwrap();
    assert_eq!(cancelled(&inputs, &out, "compare outputs", i64::MAX), ["compare outputs"]);
    assert!(run(&config(), &inputs, &out).unwrap().skipped);
}
