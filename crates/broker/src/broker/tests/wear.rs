//! A broker on the real journal, over a disk with a page that cannot be read.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Mutex;

use forebay_storage::journal::disk::{Disk, DiskFile, FolderDisk, FolderFile, FolderLock};
use forebay_storage::journal::{JournalConfig, JournalEngine, OpenError};

use super::*;

/// A folder in which one page of one file gives an I/O error.
#[derive(Clone)]
struct WornDisk {
    folder: FolderDisk,
    bad_page: Arc<Mutex<Option<(String, u64)>>>,
}

struct WornFile {
    file: FolderFile,
    name: String,
    bad_page: Arc<Mutex<Option<(String, u64)>>>,
}

impl WornDisk {
    fn file(&self, file: FolderFile, name: &str) -> WornFile {
        WornFile { file, name: name.to_owned(), bad_page: self.bad_page.clone() }
    }
}

impl Disk for WornDisk {
    type File = WornFile;
    type Lock = FolderLock;

    fn lock(&self, name: &str) -> io::Result<FolderLock> {
        self.folder.lock(name)
    }

    fn create(&self, name: &str) -> io::Result<WornFile> {
        self.folder.create(name).map(|file| self.file(file, name))
    }

    fn open(&self, name: &str) -> io::Result<WornFile> {
        self.folder.open(name).map(|file| self.file(file, name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.folder.list()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.folder.delete(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.folder.sync_folder()
    }

    fn free_space(&self) -> io::Result<u64> {
        self.folder.free_space()
    }

    fn preallocates(&self) -> bool {
        self.folder.preallocates()
    }
}

impl DiskFile for WornFile {
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_at(buffers, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match &*self.bad_page.lock().expect("no holder panics") {
            Some((name, page))
                if *name == self.name && offset < page + 4096 && *page < offset + buffer.len() as u64 =>
            {
                Err(io::Error::from_raw_os_error(5))
            }
            _ => self.file.read_at(buffer, offset),
        }
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

struct TempFolder(PathBuf);

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens the folder, once the server before has let go of it.
async fn serve(disk: &WornDisk) -> (Broker, Running) {
    let config = JournalConfig {
        segment_bytes: 32 << 20,
        frame_bytes_max: 12 << 20,
        hurried_bytes: 1 << 20,
        reserve_bytes: 0,
        free_bytes_min: 1 << 20,
        ..JournalConfig::new(7)
    };
    let engine = loop {
        match JournalEngine::open(disk.clone(), &config) {
            Ok(engine) => break engine,
            Err(OpenError::InUse) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("the folder opens: {error}"),
        }
    };
    Broker::open(Arc::new(engine), Clock::start(), BrokerConfig::new([7; 32])).await.expect("the log opens")
}

async fn publish_large(broker: &Broker, count: usize) {
    for _ in 0..count {
        let batch = batch(1, 5_000);
        let room = broker.room(&stream(), &batch).await;
        let published =
            owner(broker).publish(room, Arc::new(stream()), batch, PublishOptions::default()).await;
        published.expect("there is room");
    }
}

/// Stops the server and waits until the folder is free.
async fn stop(broker: Broker, running: Running) {
    broker.stop();
    running.await.expect("the task did not panic").expect("it stopped as asked");
}

#[tokio::test]
async fn a_page_that_cannot_be_read_holds_back_only_what_lies_on_it() {
    let path = std::env::temp_dir().join(format!("forebay-broker-wear-{}", std::process::id()));
    let folder = TempFolder(path);
    let disk = WornDisk {
        folder: FolderDisk::new(&folder.0).expect("a temporary folder can be made"),
        bad_page: Arc::default(),
    };
    let (broker, running) = serve(&disk).await;
    create(&broker, Duration::from_secs(30)).await;
    publish_large(&broker, 40).await;
    stop(broker, running).await;
    // The last segment is verified whole by a start, so another one has to come after it.
    let (broker, running) = serve(&disk).await;
    stop(broker, running).await;

    // The second page of a block in an old segment, since each start begins another one: the end of one message.
    let old = "segment-0000000001";
    let bytes = std::fs::read(folder.0.join(old)).expect("it is there");
    let begins = |page: &usize| bytes[*page..].starts_with(b"FBYBLOCK");
    let bad = (2..40).map(|page| page * 4096).find(|page| !begins(page)).expect("a block has several pages");
    *disk.bad_page.lock().expect("no holder panics") = Some((old.to_owned(), bad as u64));

    let (broker, running) = serve(&disk).await;
    let mut consumer = owner(&broker).subscribe(stream(), group(), "worker", 10).await.expect("it is let in");
    let mut acked = 0;
    let all = async {
        publish_large(&broker, 20).await;
        while acked < 59 {
            for event in next_events(&mut consumer).await {
                if let Event::Delivery(delivery) = event {
                    let leases = vec![delivery.leases()];
                    acked += delivery.messages.len();
                    consumer
                        .settle(vec![SettleRequest { ticket: 1, leases, settlement: Verb::Ack.into() }])
                        .expect("it may");
                }
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("everything else flows");
    let reasons = owner(&broker).parked_reasons(stream(), group()).await.expect("the group is there");
    assert_eq!(reasons, [("(content damaged)".into(), 1)]);
    drop(consumer);
    stop(broker, running).await;

    let (broker, running) = serve(&disk).await;
    let figures = owner(&broker).group(stream(), group()).await.expect("the group is there").figures;
    assert_eq!((figures.lag, figures.parked), (0, 1), "after a restart with the page still broken");
    publish_large(&broker, 1).await;
    stop(broker, running).await;
}
