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
    assert!(
        matches!(error, RegistryError::DigestMismatch { .. } | RegistryError::Anew { .. }),
        "{error}"
    );
    // Also of a part of it that is asked for alone.
    let mut running = bench.running(&server, &model).await;
    assert!(running.read(size as u64 - 1, 1).await.is_err());
    assert!(!bench.store.has_blob(&model.weights));
}

/// What an interrupted download leaves that has noted bytes which the disk has lost: the first of three parts.
fn leave_damaged(store: &Store, model: &Model, right: &[u8]) {
    let partial = store.partial(&model.weights).unwrap();
    let mut lost = right.to_vec();
    lost[..1 << 20].fill(0);
    std::fs::write(partial.data(), lost).unwrap();
    let note = |n: usize, completed: usize| {
        format!(r#"{{"N":{n},"Offset":{},"Size":{},"Completed":{completed}}}"#, n << 20, 1 << 20)
    };
    partial.write_part(0, note(0, 1 << 20).as_bytes()).unwrap();
    partial.write_part(1, note(1, 0).as_bytes()).unwrap();
    partial.write_part(2, note(2, 0).as_bytes()).unwrap();
}

#[tokio::test]
async fn who_reads_bytes_that_were_damaged_here_is_told_when_they_come_anew() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let bench = Bench::new();
    leave_damaged(&bench.store, &model, &right);

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
    let (server, gate) =
        gated(&model, |seen| seen.range().is_some_and(|(first, _)| first > 0)).await;
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

/// What comes within a time in which nobody has to wait for more than notes.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("it waits for the whole blob")
}

#[tokio::test]
async fn another_process_reads_along_and_fetches_nothing_again() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let (server, gate) =
        gated(&model, |seen| seen.range().is_some_and(|(first, _)| first > 0)).await;
    let first = Bench::new();
    let second = first.beside();
    let mut begun = first.running(&server, &model).await;
    begun.read(0, 1000).await.unwrap();
    let mut along = second.running(&server, &model).await;
    assert_eq!(soon(along.read(500, 500)).await.unwrap(), right[500..1000]);
    gate.add_permits(1000);
    let (all, error) = soon(read_all(begun, size)).await;
    assert!(error.is_none() && all == right, "{error:?}");
    let (all, error) = soon(read_all(along, size)).await;
    assert!(error.is_none() && all == right, "{error:?}");
    let mut asked: Vec<_> = server.blob_requests().iter().filter_map(Seen::range).collect();
    asked.sort();
    assert!(asked.windows(2).all(|two| two[0].1 < two[1].0), "{asked:?}");
}

#[tokio::test]
async fn who_reads_along_goes_on_by_himself_when_the_other_process_ends() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let (server, gate) =
        gated(&model, |seen| seen.range().is_some_and(|(first, _)| first > 0)).await;
    let first = Bench::new();
    let second = first.beside();
    let mut begun = first.running(&server, &model).await;
    begun.read(0, 1000).await.unwrap();
    let mut along = second.running(&server, &model).await;
    let mut bytes = soon(along.read(0, 1000)).await.unwrap().to_vec();
    drop(begun);
    gate.add_permits(1000);
    while bytes.len() < size {
        bytes.extend_from_slice(&soon(along.read(bytes.len() as u64, 100_000)).await.unwrap());
    }
    assert!(bytes == right);
}

#[tokio::test]
async fn who_reads_along_is_told_when_the_other_process_begins_anew() {
    let size = 3 << 20;
    let model = Model::new(size);
    let right = model.blobs[&model.weights.to_string()].clone();
    let first = Bench::new();
    let second = first.beside();
    leave_damaged(&first.store, &model, &right);
    let (server, gate) = gated(&model, Seen::is_blob).await;
    let mut begun = first.running(&server, &model).await;
    begun.read(0, 1000).await.unwrap();
    let mut along = second.running(&server, &model).await;
    assert_eq!(soon(along.read(0, 1000)).await.unwrap(), vec![0; 1000], "nobody can know yet");
    gate.add_permits(1000);
    // Somebody else has it begin anew.
    let late = first.running(&server, &model).await;
    for mut told in [begun, along] {
        let error = soon(async {
            let mut at = 1000;
            loop {
                match told.read(at, 100_000).await {
                    Ok(piece) => at += piece.len() as u64,
                    Err(error) => break error,
                }
            }
        });
        assert_eq!(error.await, RegistryError::Anew { digest: model.weights });
    }
    let (all, error) = soon(read_all(late, size)).await;
    assert!(error.is_none() && all == right, "{error:?}");
}
