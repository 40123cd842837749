//! Blobs that are read while they are downloaded.

use super::*;
use crate::DownloadReader;

impl Bench {
    /// A reader of the download of a model's weights.
    async fn download_reader(&self, server: &Server, model: &Model) -> DownloadReader {
        let name = ModelRef::parse(&format!("http://{}", server.model())).unwrap();
        let found = self.registry.look_up_model(&name, &Options::default()).await.unwrap();
        found.download_reader(&self.store, model.weights).unwrap()
    }
}

/// A server that delays some responses until the gate is open.
async fn gated(
    model: &Model,
    is_delayed: fn(&SeenRequest) -> bool,
) -> (Server, Arc<tokio::sync::Semaphore>) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (served, open) = (model.clone(), gate.clone());
    let server = Server::start_async(move |seen| {
        let (served, open) = (served.clone(), open.clone());
        async move {
            if is_delayed(&seen) {
                let _pass = open.acquire().await.unwrap();
            }
            served.answer(&seen)
        }
    })
    .await;
    (server, gate)
}

/// Reads as much as possible. Returns the bytes, and the error that ended the reading.
async fn read_all(mut reader: DownloadReader, total: usize) -> (Vec<u8>, Option<RegistryError>) {
    let mut bytes = Vec::new();
    while bytes.len() < total {
        match reader.read(bytes.len() as u64, 100_000).await {
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(error) => return (bytes, Some(error)),
        }
    }
    (bytes, None)
}

#[tokio::test]
async fn the_last_byte_of_a_blob_waits_for_its_verification() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let server = Server::of(&model).await;
    let bench = Bench::new();
    let (bytes, error) = read_all(bench.download_reader(&server, &model).await, size).await;
    assert!(error.is_none() && bytes == right);

    // One byte differs, so that only the digest detects it.
    let mut wrong_model = model.clone();
    let mut wrong = right.to_vec();
    wrong[size / 2] ^= 1;
    wrong_model.blobs.insert(model.weights.to_string(), wrong.into());
    let server = Server::of(&wrong_model).await;
    let bench = Bench::new();
    let (bytes, error) = read_all(bench.download_reader(&server, &model).await, size).await;
    assert!(bytes.len() < size, "all of a wrong blob was handed out");
    let error = error.unwrap();
    assert!(
        matches!(
            error,
            RegistryError::DigestMismatch { .. } | RegistryError::DownloadRestarted { .. }
        ),
        "{error}"
    );
    // The same holds for a part that is requested separately.
    let mut reader = bench.download_reader(&server, &model).await;
    assert!(reader.read(size as u64 - 1, 1).await.is_err());
    assert!(!bench.store.has_blob(&model.weights));
}

/// Files of an interrupted download: the first of three ranges is recorded as complete, but its
/// bytes are lost.
fn leave_damaged(store: &Store, model: &Model, right: &[u8]) {
    let partial = store.partial(&model.weights).unwrap();
    let mut lost = right.to_vec();
    lost[..1 << 20].fill(0);
    std::fs::write(partial.data(), lost).unwrap();
    let record = |n: usize, completed: usize| {
        format!(r#"{{"N":{n},"Offset":{},"Size":{},"Completed":{completed}}}"#, n << 20, 1 << 20)
    };
    partial.write_part(0, record(0, 1 << 20).as_bytes()).unwrap();
    partial.write_part(1, record(1, 0).as_bytes()).unwrap();
    partial.write_part(2, record(2, 0).as_bytes()).unwrap();
}

#[tokio::test]
async fn a_reader_fails_when_damaged_bytes_are_replaced() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let bench = Bench::new();
    leave_damaged(&bench.store, &model, &right);

    // The missing ranges arrive after a reader has read the first one.
    let (server, gate) = gated(&model, SeenRequest::is_blob).await;
    let mut early = bench.download_reader(&server, &model).await;
    let piece = early.read(0, 1000).await.unwrap();
    assert_eq!(piece, vec![0; 1000], "nobody can know yet");
    gate.add_permits(1000);
    let late = bench.download_reader(&server, &model).await;
    let mut at = piece.len();
    let error = loop {
        match early.read(at as u64, 100_000).await {
            Ok(piece) => at += piece.len(),
            Err(error) => break error,
        }
    };
    assert!(at < size);
    assert_eq!(error, RegistryError::DownloadRestarted { digest: model.weights });
    // A reader that has seen none of the old bytes is not affected.
    let (bytes, error) = read_all(late, size).await;
    assert!(error.is_none() && bytes == right, "{error:?}");
}

#[tokio::test]
async fn a_slow_reader_gets_the_rest_of_a_removed_blob() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let (server, gate) =
        gated(&model, |seen| seen.range().is_some_and(|(first, _)| first > 0)).await;
    let bench = Bench::new();
    let mut slow = bench.download_reader(&server, &model).await;
    let mut bytes = slow.read(0, 1000).await.unwrap().to_vec();
    gate.add_permits(1000);
    // Another reader waits for the end.
    let (all, error) = read_all(bench.download_reader(&server, &model).await, size).await;
    assert!(error.is_none() && all == right, "{error:?}");
    // A mirror removes the local blob when its object store has it.
    std::fs::remove_file(bench.store.blob_path(&model.weights)).unwrap();
    while bytes.len() < size {
        bytes.extend_from_slice(&slow.read(bytes.len() as u64, 100_000).await.unwrap());
    }
    assert!(bytes == right);
}

/// Runs work that must not take longer than the followed records take.
async fn within_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("it waits for the whole blob")
}

#[tokio::test]
async fn another_process_reads_a_running_download() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let (server, gate) =
        gated(&model, |seen| seen.range().is_some_and(|(first, _)| first > 0)).await;
    let first = Bench::new();
    let second = first.with_another_client();
    let mut started = first.download_reader(&server, &model).await;
    started.read(0, 1000).await.unwrap();
    let mut along = second.download_reader(&server, &model).await;
    assert_eq!(within_time(along.read(500, 500)).await.unwrap(), right[500..1000]);
    gate.add_permits(1000);
    let (all, error) = within_time(read_all(started, size)).await;
    assert!(error.is_none() && all == right, "{error:?}");
    let (all, error) = within_time(read_all(along, size)).await;
    assert!(error.is_none() && all == right, "{error:?}");
    let mut requested: Vec<_> =
        server.blob_requests().iter().filter_map(SeenRequest::range).collect();
    requested.sort();
    assert!(requested.windows(2).all(|two| two[0].1 < two[1].0), "{requested:?}");
}

#[tokio::test]
async fn a_reader_continues_the_download_of_a_process_that_ends() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let (server, gate) =
        gated(&model, |seen| seen.range().is_some_and(|(first, _)| first > 0)).await;
    let first = Bench::new();
    let second = first.with_another_client();
    let mut started = first.download_reader(&server, &model).await;
    started.read(0, 1000).await.unwrap();
    let mut along = second.download_reader(&server, &model).await;
    let mut bytes = within_time(along.read(0, 1000)).await.unwrap().to_vec();
    drop(started);
    gate.add_permits(1000);
    while bytes.len() < size {
        bytes.extend_from_slice(
            &within_time(along.read(bytes.len() as u64, 100_000)).await.unwrap(),
        );
    }
    assert!(bytes == right);
}

#[tokio::test]
async fn a_reader_fails_when_the_other_process_restarts() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let first = Bench::new();
    let second = first.with_another_client();
    leave_damaged(&first.store, &model, &right);
    let (server, gate) = gated(&model, SeenRequest::is_blob).await;
    let mut started = first.download_reader(&server, &model).await;
    started.read(0, 1000).await.unwrap();
    let mut along = second.download_reader(&server, &model).await;
    assert_eq!(
        within_time(along.read(0, 1000)).await.unwrap(),
        vec![0; 1000],
        "nobody can know yet"
    );
    gate.add_permits(1000);
    // Another reader triggers the restart.
    let late = first.download_reader(&server, &model).await;
    for mut reported in [started, along] {
        let error = within_time(async {
            let mut at = 1000;
            loop {
                match reported.read(at, 100_000).await {
                    Ok(piece) => at += piece.len() as u64,
                    Err(error) => break error,
                }
            }
        });
        assert_eq!(error.await, RegistryError::DownloadRestarted { digest: model.weights });
    }
    let (all, error) = within_time(read_all(late, size)).await;
    assert!(error.is_none() && all == right, "{error:?}");
}
