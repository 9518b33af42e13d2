//! Where a run took place: what a reader has to know before comparing it with another.

use crate::files;
use crate::numbers::real;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The machine. Names nobody: no host name, no addresses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// File system of the data.
    pub file_system: String,
    /// Device of the data, with its model if it says one.
    pub device: String,
    /// The kernel's scheduler for that device, and whether its cache is written through.
    pub device_queue: String,
    /// Policy of the processor's frequency.
    pub governor: String,
    /// Load average when the run began.
    pub load_average: f64,
}

impl Machine {
    /// This one, with data below `folder`.
    #[must_use]
    pub fn examine(folder: &Path) -> Machine {
        let kernel_file =
            |path: &str| files::read_kernel(path).unwrap_or_default().trim().to_owned();
        let cpu = kernel_file("/proc/cpuinfo");
        let processor = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown", |(_, model)| model.trim());
        let memory = kernel_file("/proc/meminfo")
            .lines()
            .find_map(|line| {
                line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok()
            })
            .map_or(0, |kib: u64| kib << 10);
        let (file_system, device, device_queue) = device(folder);
        Machine {
            processor: processor.to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory,
            kernel: kernel_file("/proc/sys/kernel/osrelease"),
            file_system,
            device,
            device_queue,
            governor: kernel_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load_average: crate::figures::load_average(),
        }
    }

    /// In a few lines.
    #[must_use]
    pub fn words(&self) -> Vec<(String, String)> {
        let gib = real(self.memory_bytes) / real(1 << 30);
        let pairs = [
            ("processor", format!("{} x {}", self.processors, self.processor)),
            ("memory", format!("{gib:.1} GiB")),
            ("kernel", self.kernel.clone()),
            ("data on", format!("{} on {}", self.file_system, self.device)),
            ("queue", self.device_queue.clone()),
            ("governor", self.governor.clone()),
            ("load average at the start", format!("{:.2}", self.load_average)),
        ];
        pairs
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// File system, device and queue below a folder.
fn device(folder: &Path) -> (String, String, String) {
    let Ok(stat) = rustix::fs::stat(folder) else { return Default::default() };
    let number = format!("{}:{}", rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let mounts = files::read_kernel("/proc/self/mountinfo").unwrap_or_default();
    // Fields of a line: id, parent, major:minor, root, mount point, options, ..., "-", type, source, options.
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number.as_str()));
    let after = mount.and_then(|line| line.split_once(" - ")).map_or("", |(_, after)| after);
    let mut words = after.split(' ');
    let file_system = words.next().unwrap_or_default().to_owned();
    let source = words.next().unwrap_or_default().to_owned();
    let base = format!("/sys/dev/block/{number}");
    // A partition's queue and model are those of the disk above it.
    let told = |path: &str| {
        [format!("{base}/{path}"), format!("{base}/../{path}")]
            .iter()
            .find_map(files::read_kernel)
            .map(|text| text.trim().to_owned())
    };
    let device = match told("device/model") {
        Some(model) => format!("{source} ({model})"),
        None => source,
    };
    let queue: Vec<String> = [
        ("scheduler", "queue/scheduler"),
        ("cache", "queue/write_cache"),
        ("rotational", "queue/rotational"),
    ]
    .iter()
    .filter_map(|(name, path)| Some(format!("{name} {}", told(path)?)))
    .collect();
    (file_system, device, queue.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::examine(folder.path());
        assert!(machine.processors > 0 && machine.memory_bytes > 0);
        assert!(!machine.kernel.is_empty());
        assert!(machine.words().iter().any(|(name, _)| name == "kernel"));
    }
}
