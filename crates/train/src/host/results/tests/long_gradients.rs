//! Tests of outer gradients that are too long for the memory of pieces.

use super::*;

const FRAGMENT: FragmentId = FragmentId { module: ModuleId { level: 0, index: 0 }, index: 0 };

/// A process that takes outer gradients of several pieces in files in its store.
struct LongGradients {
    host: Host,
    store: RunStore,
    folder: tempfile::TempDir,
    values: Vec<f32>,
}

impl LongGradients {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
        let mut host = host(|config| {
            config.model = ModelConfig { vocab_size: 10_000, hidden_size: 128, ..ModelConfig::default() };
        });
        let intake = Arc::get_mut(&mut host.intake).unwrap();
        intake.store = store.clone();
        intake.uploads = Uploads::with_room(store.clone(), PathBuf::from("no folder"), 0, [4, 2]);
        let length = intake.values(PathId(0), FRAGMENT).unwrap();
        let values = (0..length).map(|at| (at % 251) as f32 - 125.0).collect();
        Self { host, store, folder, values }
    }

    fn bytes(&self) -> Vec<u8> {
        let bytes = encode(&self.values, Compression::F32).unwrap();
        assert!(bytes.len() as u64 > 3 * PIECE_BYTES);
        bytes
    }

    fn item(number: u32) -> LeaseResult {
        LeaseResult::OuterGradient { fragment: FRAGMENT, number, tokens: 1 }
    }

    /// Sends pieces of the outer gradient with this number, which was announced with a digest. Returns the last answer.
    async fn send<'a>(
        &self,
        number: u32,
        announced: &ContentDigest,
        pieces: impl IntoIterator<Item = (usize, &'a [u8])>,
    ) -> Response {
        let mut last = Response::PieceStored;
        for (place, piece) in pieces {
            assert_eq!(last, Response::PieceStored);
            let (item, offset) = (Self::item(number), place as u64 * PIECE_BYTES);
            let uploaded = UploadedPiece { item, digest: announced.clone(), offset, ..state(0) };
            last = accept(&self.host, uploaded, Bytes::copy_from_slice(piece)).await.unwrap();
        }
        last
    }

    /// The object of an outer gradient.
    fn object(&self, number: u32, content: &ContentDigest) -> ObjectRef {
        let ContentDigest { hash, bytes } = content.clone();
        ObjectRef {
            name: Self::item(number).object_name(state(0).claim.key, self.host.to, &hash),
            hash,
            bytes,
        }
    }

    /// True if the next long outer gradient is checked while it arrives.
    fn has_room_on_arrival(&self) -> bool {
        self.host.intake.gradients.room_on_arrival().is_some()
    }
}

#[tokio::test]
async fn a_long_outer_gradient_is_read_once_while_it_arrives_in_any_order() {
    for reversed in [false, true] {
        let long = LongGradients::new();
        let (bytes, announced) = (long.bytes(), ContentDigest::of(&long.bytes()));
        let mut order: Vec<_> = pieces(&bytes).collect();
        if reversed {
            order.reverse();
        }
        let (last, first) = order.split_last().unwrap();
        assert_eq!(long.send(1, &announced, first.iter().copied()).await, Response::PieceStored);
        // What the disk holds now is no outer gradient: nobody looks.
        let [file] = &files(long.folder.path())[..] else { panic!("one file") };
        fs::write(file, vec![0xff; bytes.len()]).unwrap();
        assert_eq!(long.send(1, &announced, [*last]).await, Response::Done, "reversed: {reversed}");
        let kept = long.host.intake.gradients.remove(&long.object(1, &announced));
        assert!(kept.unwrap() == long.values && long.has_room_on_arrival());
    }
}

#[tokio::test]
async fn a_long_outer_gradient_with_wrong_content_or_wrong_values_is_refused_and_leaves_nothing() {
    let long = LongGradients::new();
    let sound = long.bytes();
    let (mut infinite, mut foreign) = (sound.clone(), sound.clone());
    let end = infinite.len() - 4;
    infinite[end..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    foreign[0] ^= 1;
    let other = ContentDigest { hash: "0".repeat(64), ..ContentDigest::of(&sound) };
    for (announced, bytes, why) in [
        (other, &sound, "its content has BLAKE3"),
        (ContentDigest::of(&infinite), &infinite, "not finite"),
        (ContentDigest::of(&foreign), &foreign, "not an outer gradient"),
        (ContentDigest::of(&sound[..end]), &sound[..end].to_vec(), "were cut"),
    ] {
        let (forwards, backwards): (Vec<_>, Vec<_>) =
            (pieces(bytes).collect(), pieces(bytes).rev().collect());
        for order in [forwards, backwards] {
            let refusal = long.send(1, &announced, order).await;
            let Response::Refused { reason } = refusal else { panic!("{refusal:?}") };
            assert!(reason.contains(why), "{reason}");
            assert!(files(long.folder.path()).is_empty() && long.has_room_on_arrival());
            assert_eq!(long.host.intake.gradients.remove(&long.object(1, &announced)), None);
            long.host.intake.uploads.retain(|_| false);
        }
    }
    assert_eq!(long.send(1, &ContentDigest::of(&sound), pieces(&sound)).await, Response::Done);
}

#[tokio::test]
async fn a_slow_outer_gradient_delays_no_other_one() {
    let long = LongGradients::new();
    let (bytes, announced) = (long.bytes(), ContentDigest::of(&long.bytes()));
    assert_eq!(long.send(1, &announced, pieces(&bytes).take(1)).await, Response::PieceStored);
    assert!(!long.has_room_on_arrival());
    assert_eq!(long.send(2, &announced, pieces(&bytes)).await, Response::Done);
    assert_eq!(long.send(1, &announced, pieces(&bytes).skip(1)).await, Response::Done);
    for number in [1, 2] {
        let object = long.object(number, &announced);
        assert!(long.store.get(&object).await.unwrap() == bytes);
        assert!(long.host.intake.gradients.remove(&object).unwrap() == long.values);
    }
    // The next one ends with its lease.
    long.send(3, &announced, pieces(&bytes).take(1)).await;
    assert!(!long.has_room_on_arrival());
    long.host.intake.uploads.retain(|_| false);
    assert!(long.has_room_on_arrival());
}
