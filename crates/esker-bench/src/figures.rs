//! What the kernel counts for this process and for the device below its data.
//!
//! Process counters hold for the whole process, so a cell that wants figures of its own runs in a process of
//! its own.

use crate::files;
use crate::numbers::real;
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;

/// Bytes that a sector of `/sys/.../stat` stands for, whatever the device's own are.
const SECTOR_BYTES: u64 = 512;

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// CPU time of all threads, in seconds.
    pub cpu_seconds: f64,
    /// Bytes that this process caused to be read from storage.
    pub process_read_bytes: u64,
    /// Bytes that this process caused to be written to storage; pages count when they become dirty.
    pub process_write_bytes: u64,
    /// Bytes read from the device, by whomever; `None` where no device is below (tmpfs).
    pub device_read_bytes: Option<u64>,
    /// Bytes written to the device, by whomever.
    pub device_write_bytes: Option<u64>,
    /// Flushes of the device, by whomever.
    pub device_flushes: Option<u64>,
}

/// A device's counters, by the number of the device that a folder lies on.
#[derive(Clone, Debug)]
pub struct Meter {
    stat: Option<String>,
}

impl Meter {
    /// For data below `folder`.
    #[must_use]
    pub fn of(folder: &Path) -> Meter {
        let stat = rustix::fs::stat(folder).ok().and_then(|found| {
            let (major, minor) = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
            let path = format!("/sys/dev/block/{major}:{minor}/stat");
            files::read_kernel(&path).map(|_| path)
        });
        Meter { stat }
    }

    /// The counters now.
    #[must_use]
    pub fn read(&self) -> Snapshot {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu_seconds = real(u64::try_from(cpu.tv_sec).unwrap_or(0))
            + real(u64::try_from(cpu.tv_nsec).unwrap_or(0)) / 1e9;
        let io = files::read_kernel("/proc/self/io").unwrap_or_default();
        let device: Vec<u64> = self
            .stat
            .as_ref()
            .and_then(files::read_kernel)
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        // Documentation/block/stat.rst: reads, merged, sectors, ticks, writes, merged, sectors, ... flushes.
        let sectors = |place: usize| device.get(place).map(|count| count * SECTOR_BYTES);
        Snapshot {
            cpu_seconds,
            process_read_bytes: named(&io, "read_bytes:"),
            process_write_bytes: named(&io, "write_bytes:"),
            device_read_bytes: sectors(2),
            device_write_bytes: sectors(6),
            device_flushes: device.get(15).copied(),
        }
    }
}

impl Snapshot {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Snapshot {
            cpu_seconds: self.cpu_seconds - earlier.cpu_seconds,
            process_read_bytes: self.process_read_bytes.saturating_sub(earlier.process_read_bytes),
            process_write_bytes: self
                .process_write_bytes
                .saturating_sub(earlier.process_write_bytes),
            device_read_bytes: less(self.device_read_bytes, earlier.device_read_bytes),
            device_write_bytes: less(self.device_write_bytes, earlier.device_write_bytes),
            device_flushes: less(self.device_flushes, earlier.device_flushes),
        }
    }
}

/// Memory of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Resident now, in bytes.
    pub rss_bytes: u64,
    /// Of those, pages of no file: what the process itself asked for.
    pub anonymous_bytes: u64,
}

impl Memory {
    /// Now.
    #[must_use]
    pub fn read() -> Memory {
        let status = files::read_kernel("/proc/self/status").unwrap_or_default();
        Memory {
            rss_bytes: named(&status, "VmRSS:") << 10,
            anonymous_bytes: named(&status, "RssAnon:") << 10,
        }
    }
}

/// The number behind a label at the start of a line.
fn named(text: &str, label: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(label)?.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Runnable processes of the last minute, on average.
#[must_use]
pub fn load_average() -> f64 {
    files::read_kernel("/proc/loadavg")
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_at_the_start_of_lines() {
        let text = "cancelled_write_bytes: 9\nwrite_bytes: 7\nVmRSS:\t  12 kB\n";
        assert_eq!(named(text, "write_bytes:"), 7);
        assert_eq!(named(text, "VmRSS:"), 12);
        assert_eq!(named(text, "nothing:"), 0);
    }

    #[test]
    fn cpu_time_and_memory_of_this_process_are_counted() {
        let meter = Meter::of(Path::new("/"));
        let before = meter.read();
        let mut held = vec![0_u64; 4 << 20];
        for (place, word) in held.iter_mut().enumerate() {
            *word = (place as u64).wrapping_mul(3);
        }
        assert!(Memory::read().anonymous_bytes > 32 << 20);
        assert!(held.iter().copied().fold(0, u64::wrapping_add) > 0);
        assert!(meter.read().since(&before).cpu_seconds > 0.0);
    }
}
