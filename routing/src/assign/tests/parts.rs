//! Work that is divided in parts, and work that was stopped.

use super::*;

#[test]
fn parts_on_several_machines_give_the_same_bytes_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 230);
    let router = small_batches(&file);
    let (whole, out) = (folder.path().join("whole"), folder.path().join("out"));
    let of = |folder| Assignment::new(&Histogram, "seed", &router, &file, folder).overlap(2).reserve(0.1, 3);
    of(&whole).run(&mut silent).unwrap();
    let part = |text: &str| of(&out).part(text.parse().unwrap(), &mut silent).unwrap();
    assert_eq!(part("1/3") + part("3/3"), 153);
    let message = of(&out).run(&mut silent).unwrap_err().to_string();
    assert!(
        message.contains("1 of 3 parts") && message.contains("dipaco route assign --part 2/3"),
        "{message}"
    );
    // Made elsewhere, twice, and copied.
    let other = folder.path().join("other");
    for _ in 0..2 {
        of(&other).part("2/3".parse().unwrap(), &mut silent).unwrap();
    }
    for (name, bytes) in bytes_of(&other) {
        std::fs::write(out.join(name), bytes).unwrap();
    }
    assert!(!of(&out).run(&mut silent).unwrap().skipped);
    assert_eq!(bytes_of(&out), bytes_of(&whole));
    assert_eq!(part("2/3"), 77);
    assert!(of(&out).run(&mut silent).unwrap().skipped);
    assert_eq!(bytes_of(&out), bytes_of(&whole));
    let names = bytes_of(&whole).into_keys().collect::<Vec<_>>().join(" ");
    assert!(names.contains("path-000/00002.h5") && names.contains("router.json"), "{names}");

    // Finished sections count, whatever the number of parts.
    let mixed = folder.path().join("mixed");
    for part in ["1/2", "2/3", "3/3", "5/9"] {
        of(&mixed).part(part.parse().unwrap(), &mut silent).unwrap();
    }
    of(&mixed).run(&mut silent).unwrap();
    assert_eq!(bytes_of(&mixed), bytes_of(&whole));
}

/// [`Histogram`] on a device with this name.
struct On(&'static str);

impl FeatureExtractor for On {
    fn dimension(&self) -> usize {
        Histogram.dimension()
    }

    fn context(&self) -> usize {
        Histogram.context()
    }

    fn features(
        &self,
        tokens: &dipaco_shards::TokenRows,
        lengths: &[usize],
    ) -> Result<Vec<f32>, crate::BoxError> {
        Histogram.features(tokens, lengths)
    }

    fn device(&self) -> Option<String> {
        Some(self.0.to_owned())
    }
}

#[test]
fn shards_name_the_devices_of_all_parts() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 230);
    let router = small_batches(&file);
    let out = folder.path().join("out");
    for (part, device) in [("1/3", "a GPU"), ("2/3", "cpu-avx2"), ("3/3", "a GPU")] {
        let model = On(device);
        let assignment = Assignment::new(&model, "seed", &router, &file, &out);
        assignment.part(part.parse().unwrap(), &mut silent).unwrap();
    }
    let listing = On("cpu-neon");
    let listed = Assignment::new(&listing, "seed", &router, &file, &out).run(&mut silent).unwrap();
    assert_eq!(listed.shards.manifest().devices, ["a GPU", "cpu-avx2"], "the listing device decided nothing");
    assert_eq!(ShardSet::open(&out).unwrap(), listed.shards);
    // The same router and text on another device: the shards stay.
    assert!(Assignment::new(&listing, "seed", &router, &file, &out).run(&mut silent).unwrap().skipped);

    let whole = folder.path().join("whole");
    assign(&Histogram, "seed", &router, &file, &whole, &mut silent).unwrap();
    assert!(!std::fs::read_to_string(whole.join("shards.json")).unwrap().contains("devices"));
    let fitted = fit(&listing, "seed", &file, &[2], 1, &RouterConfig::default(), &mut silent).unwrap().router;
    assert_eq!(fitted.fitted_on().devices, ["cpu-neon"]);
    assert_eq!(Router::from_bytes(fitted.to_bytes()).unwrap(), fitted);
}

#[test]
fn a_section_that_was_finished_before_a_failure_is_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 230);
    let router = small_batches(&file);
    let (whole, out) = (folder.path().join("whole"), folder.path().join("out"));
    assign(&Histogram, "seed", &router, &file, &whole, &mut silent).unwrap();
    let stopped = assign(&Histogram, "seed", &router, &file, &out, &mut |step| match step {
        RoutingProgress::Documents { done: 100.., .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(RoutingError::Cancelled)));
    let stamp = || std::fs::metadata(out.join("path-000/00000.h5")).unwrap().modified().unwrap();
    let kept = stamp();
    assert!(!assign(&Histogram, "seed", &router, &file, &out, &mut silent).unwrap().skipped);
    assert_eq!(bytes_of(&out), bytes_of(&whole));
    assert_eq!(stamp(), kept);
}

#[test]
fn a_file_of_a_section_that_was_cut_is_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let file = corpus(folder.path(), 230);
    let router = small_batches(&file);
    let out = folder.path().join("out");
    let assignment = Assignment::new(&Histogram, "seed", &router, &file, &out);
    for part in ["1/2", "2/2"] {
        assignment.part(part.parse().unwrap(), &mut silent).unwrap();
    }
    let cut = out.join("path-001/00001.h5");
    let whole = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &whole[..whole.len() - 2]).unwrap();
    let refused = assignment.run(&mut silent).unwrap_err();
    assert!(
        matches!(&refused, RoutingError::Tokens { source: ShardsError::Damaged { path, .. }, .. } if *path == cut),
        "{refused:?}"
    );
    assert!(!out.join("shards.json").exists());
}
