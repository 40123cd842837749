//! Downloads to a disk that fails.

use std::fs::File;
use std::time::Duration;

use puna_store::{ModelRef, StoreError};

use super::*;
use crate::Options;
#[cfg(target_os = "linux")]
use crate::tests::SleepingProcess;
use crate::tests::{Bench, Model, Server};

#[tokio::test]
async fn a_disk_read_error_ends_a_download_at_once() {
    let model = Model::new(3 << 20);
    let served = model.clone();
    // Only the first range arrives.
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
    let bench = Bench::with(|settings| settings.stall_timeout = Duration::from_secs(60));
    let name = ModelRef::parse(&server.model()).unwrap().name;
    let options = Options { insecure: true, ..Options::default() };
    let (sources, _) = bench.registry.find_manifest_sources(&name, &options).await.unwrap();
    let session = sources.first().unwrap();
    let spec = DownloadSpec {
        key: model.weights,
        verified: true,
        total: 3 << 20,
        url: session.blob_url(&model.weights),
        private_to: None,
    };
    let lock = Arc::new(bench.store.lock_download(&spec.key).unwrap().unwrap());
    let mut partial_file = PartialFile::open(
        &bench.store,
        &spec.key,
        spec.total,
        1 << 20,
        PartialPath::Primary,
        false,
    )
    .unwrap();
    // The file can be written but not read.
    partial_file.file = File::options().write(true).open(partial_file.partial.data()).unwrap();
    let (state, _watched) = watch::channel(DownloadState::default());
    let source = BlobSource::new(session.clone(), &spec);
    let active =
        Arc::new(ActiveDownload::new(source, &bench.store, &spec, lock, partial_file, &state));
    let ended = tokio::time::timeout(Duration::from_secs(20), active.run()).await;
    let error = ended.expect("it fetches what it cannot read").unwrap_err();
    assert!(
        matches!(&error, RegistryError::Store(StoreError::Io { action: "read", .. })),
        "{error}"
    );
}

#[cfg(target_os = "linux")]
fn spec(key: Digest, total: u64) -> DownloadSpec {
    let url = "http://127.0.0.1/blob".parse().unwrap();
    DownloadSpec { key, verified: true, total, url, private_to: None }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn without_disk_space_a_stopped_lock_holder_is_waited_for() {
    let bench = Bench::new();
    let (other, process) = (Store::open(bench.root()).unwrap(), SleepingProcess::new());
    let digest = Digest::of(b"weights");
    let _lock = process.lock_download_as(&other, &digest);
    process.stop();
    let (state, watched) = watch::channel(DownloadState::default());
    let acquire = async |total| {
        let spec = spec(digest, total);
        acquire_download_lock(&bench.store, &spec, Duration::from_millis(400), &state).await
    };
    // More bytes than any disk has.
    let waits = tokio::time::timeout(Duration::from_secs(2), acquire(1 << 62)).await;
    assert!(waits.is_err(), "it goes on to fail: {:?}", waits.map(|right| right.map(|_| ())));
    let said = watched.borrow().waiting_for.clone().expect("it is said who is waited for");
    assert!(said.contains("`kill -CONT "), "{said}");
    let acquired =
        tokio::time::timeout(Duration::from_secs(20), acquire(7)).await.expect("there is room");
    assert!(matches!(acquired, Ok(Some((_, PartialPath::Secondary)))));
    let copying = format!("a copy of the data of process {}", process.id());
    assert_eq!(watched.borrow().waiting_for.as_deref(), Some(&*copying));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_running_lock_holder_without_progress_is_bypassed() {
    let bench = Bench::new();
    let (other, process) = (Store::open(bench.root()).unwrap(), SleepingProcess::new());
    let digest = Digest::of(b"weights");
    let lock = process.lock_download_as(&other, &digest);
    let (state, watched) = watch::channel(DownloadState::default());
    let begun = Instant::now();
    let acquire = async |total| {
        let spec = spec(digest, total);
        acquire_download_lock(&bench.store, &spec, Duration::from_millis(20), &state).await
    };
    // More bytes than any disk has.
    let error = acquire(1 << 62).await.map(|_| ()).unwrap_err();
    assert!(begun.elapsed() >= Duration::from_millis(400), "{:?}", begun.elapsed());
    assert!(error.is_local() && !error.is_retryable(), "{error}");
    let holder = format!("process {} has locked its download", process.id());
    assert!(error.to_string().contains(&holder), "{error}");
    let acquired = acquire(7).await;
    let copying = format!("a copy of the data of process {}", process.id());
    assert_eq!(watched.borrow().waiting_for.as_deref(), Some(&*copying));
    // A third process waits for neither path without end.
    let second = acquire(7).await.map(|_| ()).unwrap_err();
    assert!(matches!(second, RegistryError::DownloadLocked { .. }), "{second}");
    assert!(matches!(acquired, Ok(Some((_, PartialPath::Secondary)))));
    drop(lock);
}
