//! Blobs that are read while they arrive.

use super::*;
use crate::Running;

impl Bench {
    /// The download of a model's weights from a server that is one's own.
    async fn running(&self, server: &Server, model: &Model) -> Running {
        let name = ModelRef::parse(&format!("http://{}", server.model())).unwrap();
        let found = self.registry.look(&name, &Options::default()).await.unwrap();
        found.running(&self.store, model.weights).unwrap()
    }
}

/// A server that holds some answers back until the gate is open.
async fn gated(model: &Model, is_held: fn(&Seen) -> bool) -> (Server, Arc<tokio::sync::Semaphore>) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (served, open) = (model.clone(), gate.clone());
    let server = Server::start_async(move |seen| {
        let (served, open) = (served.clone(), open.clone());
        async move {
            if is_held(&seen) {
                let _pass = open.acquire().await.unwrap();
            }
            served.answer(&seen)
        }
    })
    .await;
    (server, gate)
}

/// All that can be read, and why it was not more.
async fn read_all(mut running: Running, total: usize) -> (Vec<u8>, Option<RegistryError>) {
    let mut bytes = Vec::new();
    while bytes.len() < total {
        match running.read(bytes.len() as u64, 100_000).await {
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(error) => return (bytes, Some(error)),
        }
    }
    (bytes, None)
}

#[tokio::test]
async fn the_last_byte_of_a_blob_waits_for_its_digest() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let server = Server::of(&model).await;
    let bench = Bench::new();
    let (bytes, error) = read_all(bench.running(&server, &model).await, size).await;
    assert!(error.is_none() && bytes == right);

    // One byte of it is another: the digest alone can tell.
    let mut lying = model.clone();
    let mut wrong = right.to_vec();
    wrong[size / 2] ^= 1;
    lying.blobs.insert(model.weights.to_string(), wrong.into());
    let server = Server::of(&lying).await;
    let bench = Bench::new();
    let (bytes, error) = read_all(bench.running(&server, &model).await, size).await;
    assert!(bytes.len() < size, "all of a wrong blob was handed out");
    let error = error.unwrap();
    assert!(matches!(error, RegistryError::DigestMismatch { .. } | RegistryError::Anew { .. }), "{error}");
    // Also of a part of it that is asked for alone.
    let mut running = bench.running(&server, &model).await;
    assert!(running.read(size as u64 - 1, 1).await.is_err());
    assert!(!bench.store.has_blob(&model.weights));
}

#[tokio::test]
async fn who_reads_bytes_that_were_damaged_here_is_told_when_they_come_anew() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let bench = Bench::new();
    // An interrupted download has noted bytes that the disk has lost.
    let partial = bench.store.partial(&model.weights).unwrap();
    let mut lost = right.to_vec();
    lost[..1 << 20].fill(0);
    std::fs::write(partial.data(), lost).unwrap();
    let note = |n: usize, completed: usize| {
        format!(r#"{{"N":{n},"Offset":{},"Size":{},"Completed":{completed}}}"#, n << 20, 1 << 20)
    };
    partial.write_part(0, note(0, 1 << 20).as_bytes()).unwrap();
    partial.write_part(1, note(1, 0).as_bytes()).unwrap();
    partial.write_part(2, note(2, 0).as_bytes()).unwrap();

    // What is missing comes when somebody has read what is there.
    let (server, gate) = gated(&model, Seen::is_blob).await;
    let mut early = bench.running(&server, &model).await;
    let piece = early.read(0, 1000).await.unwrap();
    assert_eq!(piece, vec![0; 1000], "nobody can know yet");
    gate.add_permits(1000);
    let late = bench.running(&server, &model).await;
    let mut at = piece.len();
    let error = loop {
        match early.read(at as u64, 100_000).await {
            Ok(piece) => at += piece.len(),
            Err(error) => break error,
        }
    };
    assert!(at < size);
    assert_eq!(error, RegistryError::Anew { digest: model.weights });
    // Nobody who had nothing of the old bytes has to care.
    let (bytes, error) = read_all(late, size).await;
    assert!(error.is_none() && bytes == right, "{error:?}");
}

#[tokio::test]
async fn a_slow_reader_gets_the_rest_of_a_blob_that_is_removed_meanwhile() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let (server, gate) = gated(&model, |seen| seen.range().is_some_and(|(first, _)| first > 0)).await;
    let bench = Bench::new();
    let mut slow = bench.running(&server, &model).await;
    let mut bytes = slow.read(0, 1000).await.unwrap().to_vec();
    gate.add_permits(1000);
    // Somebody else waits for its end.
    let (all, error) = read_all(bench.running(&server, &model).await, size).await;
    assert!(error.is_none() && all == right, "{error:?}");
    // As a mirror does when its bucket has the blob.
    std::fs::remove_file(bench.store.blob_path(&model.weights)).unwrap();
    while bytes.len() < size {
        bytes.extend_from_slice(&slow.read(bytes.len() as u64, 100_000).await.unwrap());
    }
    assert!(bytes == right);
}
