use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use proptest::prelude::*;

use super::frames::checksum;
use super::*;

const FRAME: usize = 4;

fn files(folder: &Path, records: u64) -> PartFiles {
    let of = serde_json::json!({"router": "r"});
    PartFiles::new(folder.join("parts"), of, 2, FRAME, records, "dipaco route assign")
}

fn part(text: &str) -> WorkPart {
    text.parse().unwrap()
}

/// Record i is the number i; `stop` frames at most.
fn compute(files: &PartFiles, part: WorkPart, stop: usize) -> usize {
    let mut writer = files.resume(part).unwrap();
    let mut frames = 0;
    while !writer.next_frame().is_empty() && frames < stop {
        writer.push(writer.next_frame().flat_map(|record| (record as u16).to_le_bytes()).collect()).unwrap();
        frames += 1;
    }
    writer.sync().unwrap();
    frames
}

fn all(files: &PartFiles) -> Vec<u16> {
    let Found::All(parts) = files.found().unwrap() else { panic!("not whole") };
    let mut numbers = Vec::new();
    for part in parts {
        files
            .read(part, &mut |first, frame| {
                assert_eq!(first as usize, numbers.len());
                assert_eq!(first % FRAME as u64, 0);
                numbers.extend(frame.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes)));
                Ok(())
            })
            .unwrap();
    }
    numbers
}

#[test]
fn the_devices_of_a_part_are_known_until_its_records_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let on = |device: &str| files(folder.path(), 37).on(Some(device.to_owned()));
    let stop_after = |frames: usize| {
        let mut told = 0;
        move |_| {
            told += 1;
            if told > frames { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
        }
    };
    let mut records = |frame: Range<u64>| Ok(vec![0; 2 * (frame.end - frame.start) as usize]);
    let one = part("1/2");
    assert!(on("a GPU").compute(one, &mut stop_after(2), &mut records).is_err());
    on("a CPU").compute(one, &mut stop_after(usize::MAX), &mut records).unwrap();
    // Finished: this device computes nothing.
    on("another CPU").compute(one, &mut stop_after(usize::MAX), &mut records).unwrap();
    let known = |files: &PartFiles, part| files.devices(part).unwrap().into_iter().collect::<Vec<_>>();
    assert_eq!(known(&files(folder.path(), 37), one), ["a CPU", "a GPU"]);
    assert!(known(&on("a GPU"), part("2/2")).is_empty());

    // Records of another computation do not count, nor do their devices.
    let other = files(folder.path(), 36).on(Some("a third".to_owned()));
    other.compute(one, &mut stop_after(usize::MAX), &mut records).unwrap();
    assert_eq!(known(&other, one), ["a third"]);
    other.remove_part(one).unwrap();
    assert!(known(&other, one).is_empty());
    assert_eq!(std::fs::read_dir(folder.path().join("parts")).unwrap().count(), 0);
}

#[test]
fn a_divided_computation_is_whole_when_all_parts_are() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path(), 37);
    assert_eq!(files.found().unwrap(), Found::Nothing);
    compute(&files, part("1/1"), 2);
    assert_eq!(files.found().unwrap(), Found::Nothing, "a beginning that is not divided is nothing yet");
    for index in [1, 3] {
        compute(&files, WorkPart::new(index, 3).unwrap(), usize::MAX);
    }
    compute(&files, part("2/3"), 1);
    let message = files.found().unwrap_err().to_string();
    assert!(message.contains("part 2/3") && message.contains("route assign --part 2/3"), "{message}");
    assert!(!message.contains("part 1/3"), "{message}");
    compute(&files, part("2/3"), usize::MAX);
    assert_eq!(all(&files), (0..37).collect::<Vec<u16>>());
    assert_eq!(compute(&files, part("2/3"), usize::MAX), 0, "twice is once");
    files.remove().unwrap();
    files.remove().unwrap();
    assert_eq!(files.found().unwrap(), Found::Nothing);
}

#[test]
fn results_of_something_else_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let first = files(folder.path(), 10);
    compute(&first, WorkPart::WHOLE, usize::MAX);
    let other = PartFiles {
        header: Header { of: serde_json::json!({"router": "s"}), ..first.header.clone() },
        ..first.clone()
    };
    assert_eq!(other.found().unwrap(), Found::Nothing);
    assert!(other.read(WorkPart::WHOLE, &mut |_, _| Ok(())).is_err());
    assert_eq!(compute(&other, WorkPart::WHOLE, usize::MAX), 3);
    assert_eq!(first.found().unwrap(), Found::Nothing);
}

#[test]
fn more_parts_than_frames_leave_some_empty() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path(), 5);
    for index in 1..=4 {
        compute(&files, WorkPart::new(index, 4).unwrap(), usize::MAX);
    }
    assert_eq!(all(&files), [0, 1, 2, 3, 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a crash or a full disk leaves of a file, the computation goes on and gives the same.
    #[test]
    fn any_torn_file_is_continued(frames in 0usize..6, cut in 0u64..400, flip in proptest::option::of(0usize..400)) {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), 21);
        compute(&files, WorkPart::WHOLE, frames);
        let path = files.file(WorkPart::WHOLE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len().saturating_sub(cut as usize));
        if let Some(byte) = flip.and_then(|at| bytes.get_mut(at)) {
            *byte ^= 1;
        }
        std::fs::write(&path, bytes).unwrap();
        compute(&files, WorkPart::WHOLE, usize::MAX);
        prop_assert_eq!(all(&files), (0..21).collect::<Vec<u16>>());
    }
}

/// The file with right checksums of its frames, as far as it has the length of whole frames.
fn sealed(files: &PartFiles, mut bytes: Vec<u8>) -> Vec<u8> {
    let header = files.own_header(WorkPart::WHOLE).unwrap().len().min(bytes.len());
    for (number, frame) in bytes[header..].chunks_exact_mut(2 * FRAME + CHECKSUM).enumerate() {
        let (records, sum) = frame.split_at_mut(2 * FRAME);
        sum.copy_from_slice(&checksum((number * FRAME) as u64, records));
    }
    bytes
}

#[test]
fn damaged_parts_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(folder.path(), 20);
    compute(&files, WorkPart::WHOLE, usize::MAX);
    let whole = std::fs::read(files.file(WorkPart::WHOLE)).unwrap();
    let valid = |rng: &mut CaseRng| {
        let mut bytes = whole.clone();
        let records = bytes.len() - 5 * (2 * FRAME + CHECKSUM);
        bytes[records..].iter_mut().for_each(|byte| *byte = rng.random());
        sealed(&files, bytes)
    };
    let read = |bytes: &[u8]| {
        std::fs::write(files.file(WorkPart::WHOLE), bytes).unwrap();
        let mut seen = 0;
        let read = files.read(WorkPart::WHOLE, &mut |first, frame| {
            assert_eq!((first, frame.len()), (seen, 2 * FRAME));
            seen += FRAME as u64;
            Ok(())
        });
        assert!(read.is_err() || seen == 20);
        match (files.found().unwrap(), read) {
            (Found::All(_), Ok(())) => Reached::Accepted,
            (Found::All(_), Err(_)) => Reached::Inside,
            // Whole frames, and more behind them: the computation begins again.
            (Found::Nothing, Ok(())) => Reached::Inside,
            (Found::Nothing, Err(_)) => Reached::Outside,
        }
    };
    Campaign::new("routing-part").past(0.08).memory(1 << 20).cases(500).play(valid, |bytes| {
        let as_it_is = read(bytes);
        let sealed = read(&sealed(&files, bytes.to_vec()));
        if as_it_is == Reached::Outside { sealed } else { as_it_is }
    });
}
