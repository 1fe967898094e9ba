//! Tests of results in files.

use dipaco_path::PathState;
use dipaco_store::StoreLoad;

use super::*;

/// Inner steps at the end of the lease.
const STEP: u64 = 4;

/// A process that takes results of several pieces in files in its store.
struct LongResults {
    host: Host,
    store: RunStore,
    /// What is written to the store as a whole object.
    load: Arc<StoreLoad>,
    folder: tempfile::TempDir,
    /// The moments of a state at the end of a lease.
    moments: MomentSpecs,
    state: PathState,
}

impl LongResults {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (store, load) = RunStore::create(&folder.path().to_string_lossy()).unwrap().counted();
        let mut host = host(|config| {
            config.model = ModelConfig { vocab_size: 500, hidden_size: 128, ..ModelConfig::default() };
            (config.train.rounds, config.train.inner_steps, config.train.batch) = (3, STEP, 2);
        });
        host.to = STEP;
        let intake = Arc::get_mut(&mut host.intake).unwrap();
        intake.store = store.clone();
        let moments = MomentSpecs::of_plan(&intake.plan).unwrap();
        let state = PathState { step: STEP, position: 2 * STEP, ..PathState::start(&moments) };
        let mut long = Self { host, store, load, folder, moments, state };
        long.restart();
        long
    }

    /// Forgets all uploads, as a new process does.
    fn restart(&mut self) {
        let uploads = Uploads::with_room(self.store.clone(), PathBuf::from("no folder"), 0, [4, 2]);
        Arc::get_mut(&mut self.host.intake).unwrap().uploads = uploads;
    }

    /// The bytes of the state.
    fn bytes(&self) -> Vec<u8> {
        let bytes = self.state.encode(&self.moments).unwrap();
        assert!(bytes.len() as u64 > 2 * PIECE_BYTES);
        bytes
    }

    /// Sends pieces of a state that was announced with a digest, and returns the last answer.
    async fn send<'a>(
        &self,
        announced: &ContentDigest,
        pieces: impl IntoIterator<Item = (usize, &'a [u8])>,
    ) -> Result<Response, HostError> {
        let mut last = Ok(Response::PieceStored);
        for (number, piece) in pieces {
            assert_eq!(last.unwrap(), Response::PieceStored);
            let offset = number as u64 * PIECE_BYTES;
            let uploaded = UploadedPiece { digest: announced.clone(), offset, ..state(0) };
            last = accept(&self.host, uploaded, Bytes::copy_from_slice(piece)).await;
        }
        last
    }

    async fn send_all(&self, announced: &ContentDigest, bytes: &[u8]) -> Result<Response, HostError> {
        self.send(announced, pieces(bytes)).await
    }
}

#[tokio::test]
async fn a_long_state_with_wrong_content_or_wrong_values_is_refused_and_leaves_no_file() {
    let mut long = LongResults::new();
    let sound = long.bytes();
    *long.state.second.last_mut().unwrap() = f32::NAN;
    let wrong = long.bytes();
    let other = ContentDigest { hash: "0".repeat(64), ..ContentDigest::of(&sound) };
    for (announced, bytes, why) in
        [(other, &sound, "its content has BLAKE3"), (ContentDigest::of(&wrong), &wrong, "not finite")]
    {
        let refusal = long.send(&announced, pieces(bytes).rev()).await.unwrap();
        let Response::Refused { reason } = refusal else { panic!("{refusal:?}") };
        assert!(reason.contains(why), "{reason}");
        assert!(files(long.folder.path()).is_empty());
    }
    let announced = ContentDigest::of(&sound);
    assert_eq!(long.send_all(&announced, &sound).await.unwrap(), Response::Done);
    let [file] = &files(long.folder.path())[..] else { panic!("one file") };
    assert!(file.to_string_lossy().ends_with(&announced.hash) && fs::read(file).unwrap() == sound);
    assert!(long.load.writes().is_empty(), "no second write: {:?}", long.load.writes());
}

#[tokio::test]
async fn a_state_whose_process_was_killed_after_its_publication_is_taken_again() {
    let mut long = LongResults::new();
    let (bytes, announced) = (long.bytes(), ContentDigest::of(&long.bytes()));
    for _ in 0..2 {
        assert_eq!(long.send_all(&announced, &bytes).await.unwrap(), Response::Done);
        long.restart();
    }
    let [file] = &files(long.folder.path())[..] else { panic!("one file") };
    assert!(fs::read(file).unwrap() == bytes);
    // Another content under its name stays.
    fs::write(file, "damaged").unwrap();
    let error = long.send_all(&announced, &bytes).await.unwrap_err();
    assert!(error.to_string().contains("exists in"), "{error}");
    assert_eq!(fs::read(file).unwrap(), b"damaged");
}

#[tokio::test]
async fn a_state_whose_file_is_lost_is_sent_again() {
    let long = LongResults::new();
    let (bytes, announced) = (long.bytes(), ContentDigest::of(&long.bytes()));
    let last = pieces(&bytes).len() - 1;
    long.send(&announced, pieces(&bytes).take(last)).await.unwrap();
    // As the sweep of another process does.
    let [file] = &files(long.folder.path())[..] else { panic!("one file") };
    fs::remove_file(file).unwrap();
    let answer = long.send(&announced, pieces(&bytes).skip(last)).await.unwrap();
    assert!(matches!(answer, Response::Wait { .. }), "{answer:?}");
    assert!(files(long.folder.path()).is_empty());
    long.send(&announced, pieces(&bytes).take(last)).await.unwrap();
    assert_eq!(long.send(&announced, pieces(&bytes).skip(last)).await.unwrap(), Response::Done);
}
