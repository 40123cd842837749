//! Downloads onto a disk that fails.

use std::fs::File;

use puna_store::ModelRef;

use super::*;
use crate::Options;
#[cfg(target_os = "linux")]
use crate::tests::Sleeper;
use crate::tests::{Bench, Model, Server};

#[tokio::test]
async fn a_disk_that_cannot_be_read_ends_a_download_that_has_much_to_fetch() {
    let model = Model::new(3 << 20);
    let served = model.clone();
    // The first part comes, and the others do not.
    let server = Server::start_async(move |seen| {
        let served = served.clone();
        async move {
            if seen.range().is_some_and(|(first, _)| first > 0) {
                std::future::pending::<()>().await;
            }
            served.answer(&seen)
        }
    })
    .await;
    let bench = Bench::with(|settings| settings.patience = Duration::from_secs(60));
    let name = ModelRef::parse(&server.model()).unwrap().name;
    let options = Options { insecure: true, ..Options::default() };
    let (sources, _) = bench.registry.find(&name, &options).await.unwrap();
    let session = sources.first().unwrap();
    let what = What {
        key: model.weights,
        verified: true,
        total: 3 << 20,
        url: session.blob_url(&model.weights),
    };
    let lock = Arc::new(bench.store.lock_download(&what.key).unwrap().unwrap());
    let mut ground =
        Ground::of(&bench.store, &what.key, what.total, 1 << 20, Seat::Usual, false).unwrap();
    // It takes bytes, and gives none back.
    ground.file = File::options().write(true).open(ground.partial.data()).unwrap();
    let (state, _watched) = watch::channel(State::default());
    let source = Source::new(session.clone(), &what);
    let work = Arc::new(Work::new(source, &bench.store, &what, lock, ground, &state));
    let ended = tokio::time::timeout(Duration::from_secs(20), work.run()).await;
    let error = ended.expect("it fetches what it cannot read").unwrap_err();
    assert!(
        matches!(&error, RegistryError::Store(StoreError::Io { action: "read", .. })),
        "{error}"
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn who_has_no_room_beside_a_stopped_process_waits_on() {
    let bench = Bench::new();
    let (other, process) = (Store::open(bench.root()).unwrap(), Sleeper::new());
    let digest = Digest::of(b"weights");
    let _lock = process.locks(&other, &digest);
    process.stop();
    let (state, watched) = watch::channel(State::default());
    let right =
        |total| right_to_download(&bench.store, digest, total, Duration::from_millis(100), &state);
    // More than any disk has.
    let waits = tokio::time::timeout(Duration::from_secs(2), right(1 << 62)).await;
    assert!(waits.is_err(), "it goes on to fail: {:?}", waits.map(|right| right.map(|_| ())));
    let said = watched.borrow().waits.clone().expect("it is said who is waited for");
    assert!(said.contains("`kill -CONT "), "{said}");
    let right =
        tokio::time::timeout(Duration::from_secs(20), right(7)).await.expect("there is room");
    assert!(matches!(right, Ok(Some((_, Seat::Beside)))));
    let copying = format!("a copy of what process {} has noted", process.id());
    assert_eq!(watched.borrow().waits.as_deref(), Some(&*copying));
}
