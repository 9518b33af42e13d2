//! Rules that chance does not reach: damage of each structure, a segment that is taken anew while it is read, and a group
//! that was lost.

use crate::torn;
use crate::workload::{content, devices, files, options};
use esker::ErrorKind;
use esker::flex::{Space, SpaceFiles};
use esker_media::sim::{Asking, Image, Initial, SimDevices};
use std::sync::{Arc, Mutex};

type Told = std::result::Result<(), String>;

pub(crate) fn all() -> Told {
    damage().map_err(|words| format!("damage: {words}"))?;
    reused_while_read().map_err(|words| format!("reuse while reading: {words}"))?;
    lost_group().map_err(|words| format!("a lost group: {words}"))?;
    restored_over_another().map_err(|words| format!("a space that is restored: {words}"))
}

fn words(error: esker::Error) -> String {
    error.to_string()
}

fn fresh() -> SimDevices {
    devices(&[Initial::Zeros, Initial::Zeros, Initial::Zeros], 1, false)
}

fn images(devices: &SimDevices) -> Vec<Image> {
    devices.devices().iter().map(|device| device.image()).collect()
}

/// Offset of the last `magic` in an image that stands at a multiple of 512.
fn place_of(image: &Image, magic: &[u8]) -> Option<u64> {
    let bytes = image.to_vec();
    let mut starts = bytes.chunks(512).enumerate().filter(|(_, block)| block.starts_with(magic));
    starts.next_back().map(|(index, _)| index as u64 * 512)
}

/// Each structure with a flipped bit in a field that nothing else protects: the space must say so.
fn damage() -> Told {
    let devices = fresh();
    let mut options = options(6);
    options.format = true;
    options.log_size_bytes_max = 64 << 10;
    let space = Space::open_on(files(&devices), &options).map_err(words)?;
    for n in 0..30_u8 {
        space.insert_range(u64::from(n % 7), &[n; 90]).map_err(words)?;
    }
    space.checkpoint().map_err(words)?;
    let after_checkpoint = images(&devices);
    for n in 0..4_u8 {
        space.insert_range(50, &[n; 10]).map_err(words)?;
        space.sync().map_err(words)?;
    }
    let whole = images(&devices);
    let right = content(&space).map_err(words)?;
    options.format = false;
    let header = place_of(&whole[1], b"ESKFLEXT").ok_or("no header")?;
    let newest =
        if whole[1].to_vec()[32..40] > whole[1].to_vec()[4096 + 32..4096 + 40] { 0 } else { 4096 };
    if header != 4096 {
        return Err("headers are not where they belong".to_owned());
    }
    let map = place_of(&after_checkpoint[1], b"ESKM").ok_or("no map")?;
    let node = place_of(&after_checkpoint[1], b"ESKN").ok_or("no node")?;
    // The count of extents; a row's reserved bytes; a node's; payload; the length of a record.
    let cases = [
        ("header", 1, newest + 104),
        ("map", 1, map + 32 + 12),
        ("node", 1, node + 12),
        ("data", 0, 100),
        ("log", 2, 512 + 48 + 24 + 16),
    ];
    for (name, index, offset) in cases {
        let mut damaged = whole.clone();
        damaged[index].flip(offset, 1);
        let initial: Vec<_> = damaged.into_iter().map(Initial::Recycled).collect();
        let devices = crate::workload::devices(&initial, 2, false);
        let found = Space::open_on(files(&devices), &options).and_then(|space| content(&space));
        match found {
            Err(error) if error.kind() == ErrorKind::Corrupted => {}
            Err(error) => return Err(format!("{name}: {error}")),
            Ok(found) => {
                let same = found == right;
                return Err(format!("a flipped bit in the {name} passes; same content: {same}"));
            }
        }
    }
    Ok(())
}

/// What happens in the middle of a read.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// A reader has noted where bytes are; before it reads them, they are overwritten, and their segment is taken
/// anew and filled. It must start over and find the new bytes.
fn reused_while_read() -> Told {
    let devices = fresh();
    // What is done before the next call of the device.
    let meanwhile: Arc<Mutex<Option<Meanwhile>>> = Arc::default();
    let next = Arc::clone(&meanwhile);
    let data = Asking::new(Arc::clone(&devices.devices()[0]), move |_| {
        let first = next.lock().unwrap().take();
        first.into_iter().for_each(|first| first());
        Ok(())
    });
    let plain = files(&devices);
    let files = SpaceFiles { data, ..plain };
    let mut options = options(8);
    options.format = true;
    options.data_size_bytes_max = Some(16 * 4096);
    let space = Space::open_on(files, &options).map_err(words)?;
    space.append(&[1; 1000]).map_err(words)?;
    space.append(&[2; 8000]).map_err(words)?;
    space.sync().map_err(words)?;
    let writer = space.clone();
    *meanwhile.lock().unwrap() = Some(Box::new(move || {
        for n in 0..200_u64 {
            writer.write(n * 500 % 8000, &[9; 1000]).unwrap();
            writer.sync().unwrap();
        }
        writer.write(0, &[3; 1000]).unwrap();
    }));
    let mut bytes = [0; 1000];
    space.read(0, &mut bytes).map_err(words)?;
    if bytes != [3; 1000] {
        return Err(format!("the read found {:?}", &bytes[..4]));
    }
    Ok(())
}

/// Operations whose records take a group of two blocks; the salt of the segment that they take is in the first one.
fn work(space: &Space) -> Told {
    (0..200_u8).try_for_each(|n| space.insert_range(0, &[n; 10])).map_err(words)?;
    space.sync().map_err(words)
}

/// A group is torn; the same work is done again, with other salts, and its group is torn at the same place, the other
/// way round: what is left must not be the first group, whose data are gone.
fn lost_group() -> Told {
    const SECOND: (u64, u64) = (512, 1024);
    let devices = fresh();
    let mut options = options(5);
    options.format = true;
    options.testing.records_max = 400;
    let space = Space::open_on(files(&devices), &options).map_err(words)?;
    let before = images(&devices);
    work(&space)?;
    let mut torn = images(&devices);
    let second = |image: &Image| image.to_vec()[512..1024].to_vec();
    let group = torn[2].to_vec();
    if !group.starts_with(b"ESKG") || second(&torn[2]) == second(&before[2]) {
        return Err("the group has not two blocks".to_owned());
    }
    torn::copy(&before[2], &mut torn[2], SECOND);

    options.format = false;
    options.testing.seed = Some(6);
    let devices = of_images(&torn);
    let space = Space::open_on(files(&devices), &options).map_err(words)?;
    work(&space)?;
    let again = images(&devices);
    if again[2].to_vec()[..512] == group[..512] || second(&again[2]) != group[512..1024] {
        return Err("the groups do not differ in their first blocks alone".to_owned());
    }
    let torn = torn::cut(&devices, 2, esker::sites::flex::LOG_FLUSH, SECOND);
    let devices = of_images(&torn);
    let found = Space::open_on(files(&devices), &options).and_then(|space| content(&space));
    match found {
        Ok(found) if found.is_empty() => Ok(()),
        Ok(found) => Err(format!("{} bytes came back", found.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// Power fails while a space is made for what is restored, where there was one: it is none until it has something, and says so.
fn restored_over_another() -> Told {
    let devices = fresh();
    let mut options = options(4);
    options.format = true;
    let space = Space::open_on(files(&devices), &options).map_err(words)?;
    work(&space)?;
    space.checkpoint().map_err(words)?;
    let before = content(&space).map_err(words)?;
    drop(space);
    let target = of_images(&images(&devices));
    options.restoring = true;
    options.testing.seed = Some(7);
    let space = Space::open_on(files(&target), &options).map_err(words)?;
    space.insert_range(0, &[7; 64]).map_err(words)?;
    // To both places of a header.
    space.checkpoint().and_then(|()| space.append(&[8])).map_err(words)?;
    space.checkpoint().map_err(words)?;
    let after = content(&space).map_err(words)?;
    (options.format, options.restoring, options.testing.seed) = (false, false, Some(8));
    let (traces, end) = (target.traces(), target.position());
    for position in 0..=end {
        for seed in 0..8 {
            let survived = of_images(&SimDevices::cut(&traces, position, seed));
            match Space::open_on(files(&survived), &options).and_then(|space| content(&space)) {
                Ok(found) if found == before && position < end => {}
                Ok(found) if found == after => {}
                Err(error) if error.to_string().contains("restore again") && position < end => {}
                Ok(found) => {
                    return Err(format!("{} bytes after a cut at {position}", found.len()));
                }
                Err(error) => return Err(format!("after a cut at {position}: {error}")),
            }
        }
    }
    Ok(())
}

fn of_images(images: &[Image]) -> SimDevices {
    let initial: Vec<_> = images.iter().cloned().map(Initial::Recycled).collect();
    devices(&initial, 3, true)
}
