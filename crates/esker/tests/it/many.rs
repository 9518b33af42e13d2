//! Several keys at once, on an ordinary thread: what single gets say, with reads that go together.

use crate::support::{DEVICE_SIZE, device, flip_on, options};
use esker::{Attributes, Condition, Durability, ErrorKind, Options, PutOptions, Result, Store};
use esker_base::Site;
use esker_base::rng::Rng;
use esker_media::sim::SimBlock;
use esker_media::{BlockDevice, BlockGeometry, Counters, NewSet, StripedDevice};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A device that counts reads that come together.
#[derive(Debug)]
struct Counting {
    device: Arc<SimBlock>,
    together: AtomicUsize,
}

impl BlockDevice for Counting {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn geometry(&self) -> BlockGeometry {
        self.device.geometry()
    }

    fn report(&self) -> String {
        self.device.report()
    }

    fn counters(&self) -> Counters {
        self.device.counters()
    }

    fn reads_bytes(&self) -> bool {
        self.device.reads_bytes()
    }

    fn read_at(&self, site: Site, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.device.read_at(site, offset, buf)
    }

    fn read_many_at(&self, site: Site, reads: &mut [(u64, &mut [u8])]) -> Result<()> {
        self.together.fetch_add(reads.len(), Ordering::Relaxed);
        self.device.read_many_at(site, reads)
    }

    fn write_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.device.write_at(site, offset, bufs)
    }

    fn write_durable_at(&self, site: Site, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.device.write_durable_at(site, offset, bufs)
    }

    fn flush(&self, site: Site) -> Result<()> {
        self.device.flush(site)
    }

    fn discard(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.device.discard(site, offset, length)
    }

    fn prepare(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.device.prepare(site, offset, length)
    }

    fn reserve(&self, site: Site, offset: u64, length: u64) -> Result<()> {
        self.device.reserve(site, offset, length)
    }
}

fn opened(seed: u64, options: &Options) -> (Arc<Counting>, Store) {
    let device = Arc::new(Counting { device: device(seed), together: AtomicUsize::new(0) });
    let store = Store::open_on(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
    (device, store)
}

/// Keys with values of all kinds, some deleted, some that have expired.
fn populate(store: &Store, rng: &mut Rng) -> Vec<Vec<u8>> {
    let keys: Vec<_> = (0..60).map(|n| format!("key{n}").into_bytes()).collect();
    for key in keys.iter().chain(&keys) {
        let size = if rng.chance(1, 12) { 2500 } else { rng.index(600) };
        let mut value = vec![0; size];
        rng.fill(&mut value);
        let expires_at = rng.chance(1, 12).then_some(1);
        let attributes = Attributes { flags: 7, expires_at, state: 0 };
        let put = PutOptions { attributes, condition: Condition::Always };
        store.put_with(key, &value, put).unwrap();
        if rng.chance(1, 8) {
            store.delete(key).unwrap();
        }
    }
    store.clean(3).unwrap();
    keys
}

#[test]
fn several_keys_have_what_each_has_by_itself_and_are_read_together() {
    for seed in 0..24 {
        let mut options = options(seed);
        if seed % 4 > 1 {
            // Only records tell keys apart.
            options.testing.hash_mask = 7;
        }
        if seed % 3 == 1 {
            options.durability = Durability::None;
        }
        options.record_cache_bytes = if seed % 5 == 4 { 8 << 10 } else { 0 };
        let (device, store) = opened(seed, &options);
        let mut rng = Rng::from_seed(seed);
        let mut keys = populate(&store, &mut rng);
        keys.extend([b"missing".to_vec(), b"key3".to_vec(), b"key3".to_vec()]);
        let wanted: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        for round in 0..2 {
            let values = store.multi_get(&wanted).unwrap();
            for (key, value) in keys.iter().zip(values) {
                let expected = store.get(key).unwrap();
                let parts =
                    |value: &esker::Value| (value.to_vec(), value.version(), value.attributes());
                assert_eq!(
                    value.as_ref().map(parts),
                    expected.as_ref().map(parts),
                    "seed {seed}, round {round}"
                );
            }
        }
        let together = device.together.load(Ordering::Relaxed);
        if seed % 4 < 2 && options.durability == Durability::Sync && seed % 5 != 4 {
            assert!(together > 60, "seed {seed}: {together} reads");
        }
        store.close().unwrap();
        assert_eq!(store.multi_get(&wanted).unwrap_err().kind(), ErrorKind::Closed);
        assert!(store.multi_get(&[]).unwrap().is_empty());
    }
}

#[test]
fn a_key_that_is_none_and_damage_are_errors() {
    let (device, store) = opened(3, &options(3));
    let mut rng = Rng::from_seed(3);
    let keys = populate(&store, &mut rng);
    let mut wanted: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    wanted.push(b"");
    assert_eq!(store.multi_get(&wanted).unwrap_err().kind(), ErrorKind::InvalidArgument);
    wanted.pop();
    (0..200).for_each(|_| flip_on(&device.device, 8192 + rng.below(DEVICE_SIZE - 8192)));
    assert_eq!(store.multi_get(&wanted).unwrap_err().kind(), ErrorKind::Corrupted);
}

#[test]
fn reads_of_a_striped_device_go_together_to_each_member() {
    const SITE: Site = Site::new("test.many", esker_base::SiteKind::Read);
    let counting = |seed| Counting { device: device(seed), together: AtomicUsize::new(0) };
    let members: Vec<_> = (0..3).map(|seed| Arc::new(counting(seed))).collect();
    let set =
        NewSet { lead_size_bytes: 4096, unit_size_bytes: 4096, set_id: [1; 16], replace: false };
    let devices = members.iter().map(|member| Arc::clone(member) as Arc<dyn BlockDevice>);
    let striped = StripedDevice::open(devices.collect(), Some(&set)).unwrap();
    let mut data = vec![0; 64 << 10];
    Rng::from_seed(1).fill(&mut data);
    striped.write_at(SITE, 0, &[IoSlice::new(&data)]).unwrap();
    // The lead, units of each member, and one read over the end of a unit.
    let places = [0, 4096, 8192, 12288, 16384, 20480, 24576 + 3584, 40960 + 512];
    let mut bufs = vec![vec![0; 1024]; places.len()];
    let mut reads: Vec<(u64, &mut [u8])> =
        places.iter().zip(&mut bufs).map(|(at, buf)| (*at, &mut buf[..])).collect();
    striped.read_many_at(SITE, &mut reads).unwrap();
    for (at, buf) in places.iter().zip(&bufs) {
        let at = usize::try_from(*at).unwrap();
        assert!(*buf == data[at..at + 1024], "{at}");
    }
    let together = members.iter().map(|member| member.together.load(Ordering::Relaxed));
    assert_eq!(together.sum::<usize>(), places.len() - 1);
    let (mut inside, mut outside) = ([0; 512], [0; 512]);
    let size = striped.geometry().size_bytes;
    let mut reads = [(0, &mut inside[..]), (size, &mut outside[..])];
    assert_eq!(
        striped.read_many_at(SITE, &mut reads).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}
