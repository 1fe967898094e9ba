use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use super::*;

#[derive(Clone, Default)]
struct Fake {
    milliseconds: Arc<AtomicU64>,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Fake {
    fn pass(&self, milliseconds: u64) {
        self.milliseconds.fetch_add(milliseconds, Ordering::Relaxed);
    }

    fn progress(&self) -> Progress {
        Progress::plain(Box::new(self.clone()), Arc::new(self.clone()))
    }

    fn lines(&self) -> Vec<String> {
        String::from_utf8(lock(&self.written).clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

impl RunClock for Fake {
    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.milliseconds.load(Ordering::Relaxed))
    }
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

impl Write for Fake {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.written).extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_plain_line_comes_every_few_seconds_and_at_the_end() {
    let fake = Fake::default();
    let task = fake.progress().task("prepare", Some(20_100_000), ProgressUnit::Bytes);
    for _ in 0..60 {
        fake.pass(100);
        task.add(310_000);
    }
    fake.pass(200);
    task.set(20_100_000);
    task.finish();
    assert_eq!(
        fake.lines(),
        ["prepare  15.5 of 20.1 MB  3.1 MB/s  remaining 1 s", "prepare  20.1 MB in 6.2 s  3.2 MB/s"]
    );
}

#[test]
fn units_done_before_the_task_do_not_count_for_the_rate() {
    let fake = Fake::default();
    let task = fake.progress().task("seed", Some(1_000), ProgressUnit::Count("steps"));
    task.resume_at(900);
    fake.pass(10_000);
    task.note("loss 3.214");
    assert_eq!(fake.lines(), ["seed  900 of 1,000 steps  loss 3.214"]);
    fake.pass(10_000);
    task.add(50);
    assert_eq!(fake.lines()[1], "seed  950 of 1,000 steps  2.5 steps/s  remaining 20 s  loss 3.214");
    task.finish();
    task.finish();
    assert_eq!(fake.lines().len(), 3);
}

#[test]
fn a_dropped_task_shows_where_it_stopped() {
    let fake = Fake::default();
    let task = fake.progress().task("train", Some(4), ProgressUnit::Count("rounds"));
    let clone = task.clone();
    drop(task);
    assert!(fake.lines().is_empty());
    clone.add(1);
    drop(clone);
    assert_eq!(fake.lines(), ["train  stopped at 1 of 4 rounds"]);
}

#[test]
fn a_task_counts_from_several_threads() {
    let fake = Fake::default();
    let task = fake.progress().task("documents", None, ProgressUnit::Count("documents"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| task.add(1)));
        }
    });
    fake.pass(1_000);
    task.finish();
    assert_eq!(fake.lines(), ["documents  4,000 documents in 1.0 s  4.0k documents/s"]);
}

#[test]
fn a_task_without_numbers_ends_with_its_time() {
    let fake = Fake::default();
    let task = fake.progress().task("train the tokenizer", None, ProgressUnit::Bytes);
    fake.pass(1_500);
    task.finish();
    assert_eq!(fake.lines(), ["train the tokenizer  1.5 s"]);
}

struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }
}

#[test]
fn a_closed_output_is_no_failure() {
    let progress = Progress::plain(Box::new(Closed), Arc::new(Fake::default()));
    progress.line("hello");
    progress.task("prepare", None, ProgressUnit::Bytes).finish();
}
