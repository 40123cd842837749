//! Interrupted downloads resume from the received bytes.

use std::fs;

use super::*;
use crate::WAITING_PREFIX;
use crate::download::positioned_io::file_id;
use crate::download::resumable_sha256::ResumableSha256;

/// A server that sends the weights slowly, so that there is time to interrupt.
async fn slow_server(model: &Model) -> Server {
    let served = model.clone();
    Server::start(move |seen| {
        let Some((first, last)) =
            seen.range().filter(|_| seen.path.ends_with(&served.weights.to_string()))
        else {
            return served.answer(&seen);
        };
        let blob = &served.blobs[&served.weights.to_string()];
        let pieces = (first..=last).step_by(1 << 18).map(|at| {
            let end = (at + (1 << 18)).min(last + 1);
            (Duration::from_millis(10), Some(blob.slice(at as usize..end as usize)))
        });
        let part = Response::builder().status(206);
        let part = part.header("Content-Range", format!("bytes {first}-{last}/{}", blob.len()));
        part.body(slowly(pieces.collect())).unwrap()
    })
    .await
}

fn requested(server: &Server, model: &Model) -> u64 {
    let of_weights =
        server.blob_requests().into_iter().filter(|s| s.path.ends_with(&model.weights.to_string()));
    of_weights.map(|seen| seen.range().unwrap()).map(|(first, last)| last - first + 1).sum()
}

#[tokio::test]
async fn a_cancelled_pull_resumes() {
    let model = Model::new(8 << 20);
    let server = slow_server(&model).await;
    let bench = Bench::with(|settings| settings.streams = 2);
    let name = server.model();
    for _ in 0..3 {
        let _ = tokio::time::timeout(Duration::from_millis(90), bench.pull(&name)).await;
        // The download notices that no pull waits for it.
        while Arc::strong_count(&bench.store) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(bench.partials().len() > 1);
    bench.pull_ok(&name).await;
    bench.assert_has(&model, &name);
    let requested = requested(&server, &model);
    // Interrupted requests asked for more than they got: at most their ranges, three times two.
    assert!(requested <= (8 << 20) + 6 * (1 << 20), "{requested} bytes were asked for");
}

#[tokio::test]
async fn ollamas_records_are_understood() {
    let model = Model::new(250_000);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    let blob = &model.blobs[&model.weights.to_string()];
    let partial = bench.store.partial(&model.weights).unwrap();
    let mut data = vec![0; 250_000];
    data[..130_000].copy_from_slice(&blob[..130_000]);
    fs::write(partial.data(), &data).unwrap();
    for (n, offset, size, completed) in
        [(0, 0, 100_000, 100_000), (1, 100_000, 100_000, 30_000), (2, 200_000, 50_000, 0)]
    {
        let record = format!(
            "{{\"N\":{n},\"Offset\":{offset},\"Size\":{size},\"Completed\":{completed}}}\n"
        );
        fs::write(partial.part(n), record).unwrap();
    }
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    let mut ranges: Vec<_> = server
        .blob_requests()
        .iter()
        .filter(|seen| seen.path.ends_with(&model.weights.to_string()))
        .map(|seen| seen.range().unwrap())
        .collect();
    ranges.sort();
    assert_eq!(ranges, [(130_000, 199_999), (200_000, 249_999)]);
}

#[tokio::test]
async fn records_cover_every_byte_at_any_time() {
    let model = Model::new(8 << 20);
    let (mut looks, mut rounds) = (0, 0);
    // Repeats until enough downloads were observed in progress.
    while looks < 20 {
        rounds += 1;
        assert!(rounds <= 100, "{looks} looks in 100 downloads");
        let server = slow_server(&model).await;
        let bench = Bench::with(|settings| settings.streams = 3);
        let name = server.model();
        let partial = bench.store.partial(&model.weights).unwrap();
        let watch = async {
            loop {
                tokio::time::sleep(Duration::from_millis(4)).await;
                let (mut total, mut files) = (0u64, 0);
                for n in partial.parts().unwrap() {
                    let Ok(text) = fs::read_to_string(partial.part(n)) else { continue };
                    let record: serde_json::Value =
                        serde_json::from_str(&text).expect("whole at any moment");
                    total += record["Size"].as_u64().unwrap();
                    files += 1;
                }
                if files >= 8 {
                    looks += 1;
                    assert!(total >= 8 << 20, "{total}");
                }
            }
        };
        tokio::select! {
            _ = bench.pull_ok(&name) => {}
            () = watch => {}
        }
        bench.assert_has(&model, &name);
    }
}

/// An interrupted download of 3 MiB. Its first MiB is recorded as complete and consists of zeros.
/// The saved hash state is that of the correct bytes.
fn leave_verified_bytes(bench: &Bench, model: &Model, is_of_this_file: bool) {
    let partial = bench.store.partial(&model.weights).unwrap();
    let file = fs::File::create(partial.data()).unwrap();
    file.set_len(3 << 20).unwrap();
    for n in 0..3u64 {
        let completed = if n == 0 { 1 << 20 } else { 0 };
        let record = format!(
            "{{\"N\":{n},\"Offset\":{},\"Size\":{},\"Completed\":{completed}}}",
            n << 20,
            1 << 20
        );
        fs::write(partial.part(n), record).unwrap();
    }
    let mut sum = ResumableSha256::default();
    sum.update(&model.blobs[&model.weights.to_string()][..1 << 20]);
    let number = file_id(&file).unwrap() + u64::from(!is_of_this_file);
    partial.write_hash_state(&serde_json::to_vec(&sum.save(number).unwrap()).unwrap()).unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn verified_bytes_of_an_interrupted_download_are_not_read_again() {
    let model = Model::new(3 << 20);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    leave_verified_bytes(&bench, &model, true);
    bench.pull_ok(&server.model()).await;
    assert_eq!(requested(&server, &model), 2 << 20);
    // A second hash of these bytes would have detected that they are wrong.
    let blob = fs::read(bench.store.blob_path(&model.weights)).unwrap();
    assert!(blob[..1 << 20].iter().all(|byte| *byte == 0));
    assert_eq!(blob[1 << 20..], model.blobs[&model.weights.to_string()][1 << 20..]);

    // The hash state of another file does not count.
    let bench = Bench::new();
    leave_verified_bytes(&bench, &model, false);
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
    assert_eq!(requested(&server, &model), (2 + 2 + 3) << 20);
}

#[tokio::test]
async fn bytes_lost_by_a_power_failure_are_fetched_again() {
    let model = Model::new(3 << 20);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    let partial = bench.store.partial(&model.weights).unwrap();
    // Recorded as complete, but the file is sparse.
    fs::File::create(partial.data()).unwrap().set_len(3 << 20).unwrap();
    fs::write(
        partial.part(0),
        format!("{{\"N\":0,\"Offset\":0,\"Size\":{},\"Completed\":{}}}", 3 << 20, 2 << 20),
    )
    .unwrap();
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
}

#[tokio::test]
async fn a_pull_waits_for_another_process_and_uses_its_blob() {
    let model = Model::new(200_000);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    let other = Store::open(bench.root()).unwrap();
    let lock = other.lock_download(&model.weights).unwrap().unwrap();
    let name = server.model();
    let finish = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        other.add_blob(&model.blobs[&model.weights.to_string()]).unwrap();
        drop(lock);
    };
    tokio::join!(bench.pull_ok(&name), finish);
    bench.assert_has(&model, &name);
    assert!(
        server.blob_requests().iter().all(|seen| !seen.path.ends_with(&model.weights.to_string()))
    );
}

/// A process that is killed at the end of the test.
#[cfg(target_os = "linux")]
pub(crate) struct SleepingProcess(std::process::Child);

#[cfg(target_os = "linux")]
impl SleepingProcess {
    pub(crate) fn new() -> Self {
        Self(std::process::Command::new("sleep").arg("600").spawn().unwrap())
    }

    pub(crate) fn stop(&self) {
        let pid = self.0.id().to_string();
        assert!(
            std::process::Command::new("kill").args(["-STOP", &pid]).status().unwrap().success()
        );
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Locks a download so that this process seems to hold the lock.
    pub(crate) fn lock_download_as(&self, other: &Store, digest: &Digest) -> puna_store::BlobLock {
        let lock = other.lock_download(digest).unwrap().unwrap();
        let file = other.root().join(format!("puna-tmp/{}.lock", digest.hex()));
        let noted = fs::read_to_string(&file).unwrap();
        let (_, of_here) = noted.split_once(' ').unwrap();
        fs::write(&file, format!("{} {of_here}", self.0.id())).unwrap();
        lock
    }
}

#[cfg(target_os = "linux")]
impl Drop for SleepingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// An interrupted download of 3 MiB; another process holds its lock. The given bytes are recorded
/// as complete.
#[cfg(target_os = "linux")]
fn locked_by(
    other: &Store,
    model: &Model,
    process: &SleepingProcess,
    parts: &[&[u8]],
) -> puna_store::BlobLock {
    let lock = process.lock_download_as(other, &model.weights);
    let partial = other.partial(&model.weights).unwrap();
    let mut data = parts.concat();
    data.resize(3 << 20, 0);
    fs::write(partial.data(), data).unwrap();
    for n in 0..3 {
        let completed = parts.get(n).map_or(0, |part| part.len());
        let record = format!(
            "{{\"N\":{n},\"Offset\":{},\"Size\":{},\"Completed\":{completed}}}",
            n << 20,
            1 << 20
        );
        fs::write(partial.part(n as u64), record).unwrap();
    }
    lock
}

/// Number of files that a bypassing download has left.
#[cfg(target_os = "linux")]
fn bypass_file_count(bench: &Bench) -> usize {
    let names = fs::read_dir(bench.root().join("puna-tmp")).unwrap();
    names
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("-beside"))
        .count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_pull_copies_the_recorded_bytes_of_a_stopped_process() {
    let model = Model::new(3 << 20);
    let server = Server::of(&model).await;
    let bench = Bench::with(|settings| settings.lock_holder_timeout = Duration::from_millis(300));
    let (other, process) = (Store::open(bench.root()).unwrap(), SleepingProcess::new());
    let blob = &model.blobs[&model.weights.to_string()];
    let lock =
        locked_by(&other, &model, &process, &[&blob[..1 << 20], &blob[1 << 20..(1 << 20) + 1000]]);
    let partial = other.partial(&model.weights).unwrap();
    let left = || {
        (fs::read(partial.data()).unwrap(), [0, 1, 2].map(|n| fs::read(partial.part(n)).unwrap()))
    };
    let (before, name) = (left(), server.model());
    // A running process is waited for, even if it makes no progress.
    let waits = tokio::time::timeout(Duration::from_secs(1), bench.pull_ok(&name)).await;
    assert!(waits.is_err() && requested(&server, &model) == 0);
    process.stop();
    tokio::time::timeout(Duration::from_secs(20), bench.pull_ok(&name)).await.expect("it goes on");
    assert_eq!(bench.store.verify_blob(&model.weights), Ok(3 << 20));
    assert_eq!(requested(&server, &model), (2 << 20) - 1000, "what is noted comes once");
    assert!(left() == before, "what is the other's stays as it was");
    assert_eq!(bypass_file_count(&bench), 0);
    // The stopped process continues and gets the same bytes.
    let file = fs::File::options().write(true).open(partial.data()).unwrap();
    crate::download::positioned_io::write_at(&file, blob, 0).unwrap();
    other.finish_partial(&partial, &model.weights).unwrap();
    drop(lock);
    bench.assert_has(&model, &name);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn damaged_bytes_of_a_stopped_process_are_fetched_again() {
    let model = Model::new(3 << 20);
    let server = Server::of(&model).await;
    let bench = Bench::with(|settings| settings.lock_holder_timeout = Duration::from_millis(100));
    let (other, process) = (Store::open(bench.root()).unwrap(), SleepingProcess::new());
    let _lock = locked_by(&other, &model, &process, &[&[0; 1 << 20]]);
    process.stop();
    let name = server.model();
    tokio::time::timeout(Duration::from_secs(20), bench.pull_ok(&name)).await.expect("it goes on");
    assert_eq!(bench.store.verify_blob(&model.weights), Ok(3 << 20));
    assert_eq!((requested(&server, &model), bypass_file_count(&bench)), (5 << 20, 0));
}

#[tokio::test]
async fn the_lock_holder_is_named_at_once_and_its_progress_is_shown() {
    let model = Model::new(3 << 20);
    let server = Server::of(&model).await;
    let bench = Bench::new();
    let other = Store::open(bench.root()).unwrap();
    let lock = other.lock_download(&model.weights).unwrap().unwrap();
    let partial = other.partial(&model.weights).unwrap();
    fs::File::create(partial.data()).unwrap().set_len(3 << 20).unwrap();
    let (report, mut lines) = tokio::sync::mpsc::channel(64);
    let name = ModelRef::parse(&server.model()).unwrap();
    let options = Options { insecure: true, ..Options::default() };
    let pull = bench.registry.pull(&bench.store, &name, &options, report);
    let said = async {
        let mut seen = Vec::new();
        while let Some(line) = lines.recv().await {
            if line.status.starts_with(WAITING_PREFIX) {
                seen.push(line.status);
                break;
            }
        }
        let record = |completed: u64| {
            format!("{{\"N\":0,\"Offset\":0,\"Size\":{},\"Completed\":{completed}}}", 3 << 20)
        };
        fs::write(partial.part(0), record(1 << 20)).unwrap();
        while let Some(line) = lines.recv().await {
            if line.digest == Some(model.weights) && line.completed == 1 << 20 {
                break;
            }
        }
        // The bytes were never written: the next download must fetch all of them.
        fs::write(partial.part(0), record(0)).unwrap();
        drop(lock);
        while let Some(line) = lines.recv().await {
            seen.push(line.status);
        }
        seen
    };
    let (pulled, seen) = tokio::join!(pull, said);
    pulled.unwrap();
    let fetches = format!(", which fetches {}", model.weights.short());
    assert!(seen[0].ends_with(&fetches), "{seen:?}");
    if cfg!(unix) {
        assert_eq!(seen[0], format!("waiting for process {}{fetches}", std::process::id()));
    }
    assert!(
        !seen[1..].iter().any(|status| status.starts_with(WAITING_PREFIX)),
        "it is said once: {seen:?}"
    );
    bench.assert_has(&model, &server.model());
}

#[tokio::test]
async fn a_server_without_range_requests_restarts_a_resumed_download() {
    let model = Model::new(3 << 20);
    let served = model.clone();
    let server = Server::start(move |mut seen| {
        seen.headers.remove("range");
        served.answer(&seen)
    })
    .await;
    let bench = Bench::new();
    let blob = &model.blobs[&model.weights.to_string()];
    let partial = bench.store.partial(&model.weights).unwrap();
    let mut data = vec![0; 3 << 20];
    data[..1 << 20].copy_from_slice(&blob[..1 << 20]);
    fs::write(partial.data(), &data).unwrap();
    for n in 0..3u64 {
        let completed = if n == 0 { 1 << 20 } else { 0 };
        let record = format!(
            "{{\"N\":{n},\"Offset\":{},\"Size\":{},\"Completed\":{completed}}}",
            n << 20,
            1 << 20
        );
        fs::write(partial.part(n), record).unwrap();
    }
    bench.pull_ok(&server.model()).await;
    bench.assert_has(&model, &server.model());
}
