//! The same accesses by `fio`, for the same target: a second opinion on what the device gives.

use super::device::{Access, Target};
use super::row;
use crate::document::Row;
use crate::failure::{Failure, Outcome};
use crate::numbers::{real, whole};
use esker_trt::Facility;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Runs `fio`; `None` if it is not installed.
///
/// # Errors
/// Those of `fio`.
pub fn run(
    target: &Target,
    access: Access,
    facility: Facility,
    depth: usize,
    time: Duration,
) -> Outcome<Option<Row>> {
    let engine = match facility {
        Facility::Uring => "io_uring",
        Facility::Aio => "libaio",
        Facility::Sync | Facility::Inline => "psync",
    };
    let kind = match access {
        Access::RandomRead => "randread",
        Access::SequentialRead => "read",
        Access::SequentialWrite | Access::DurableWrite => "write",
    };
    let mut command = Command::new("fio");
    command
        .args(["--name=raw", "--output-format=json", "--direct=1", "--time_based"])
        .args(["--thread", "--cpus_allowed=0", "--randrepeat=0", "--norandommap"])
        .arg(file_name(&target.path().display().to_string()))
        // It is there: no other one is to be made, whatever becomes of the name.
        .arg("--allow_file_create=0")
        .arg(format!("--size={}", target.size_bytes()))
        .arg(format!("--runtime={}ms", whole(real(time.as_millis().try_into().unwrap_or(0)))))
        .arg(format!("--rw={kind}"))
        .arg(format!("--bs={}", access.bytes()))
        .arg(format!("--ioengine={engine}"))
        .arg(format!("--iodepth={depth}"));
    if facility == Facility::Sync {
        // A synchronous engine has one request in flight for each job.
        command.arg(format!("--numjobs={depth}")).arg("--group_reporting");
    }
    if facility == Facility::Aio {
        command.arg("--userspace_reap");
    }
    if access == Access::DurableWrite {
        // As `RWF_DSYNC`: the write itself is durable.
        command.arg("--sync=dsync");
    }
    let output = match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        output => output?,
    };
    if !output.status.success() {
        return Err(Failure::new(format!(
            "fio: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let start = text.find('{').unwrap_or(0);
    let told: Value = serde_json::from_str(text.get(start..).unwrap_or_default())?;
    let direction = if access.writes() { "write" } else { "read" };
    read(&told, direction, access, row(&format!("fio-{engine}"), access.name(), depth)).map(Some)
}

/// Takes the figures out of what `fio` says.
fn read(told: &Value, direction: &str, access: Access, mut row: Row) -> Outcome<Row> {
    let job = told.pointer("/jobs/0").ok_or_else(|| Failure::new("fio names no job"))?;
    let number = |path: String| {
        let found = job.pointer(&path).and_then(Value::as_f64);
        found.ok_or_else(|| Failure::new(format!("fio says no {path}")))
    };
    row.ops_per_second = number(format!("/{direction}/iops"))?;
    row.ops = whole(number(format!("/{direction}/total_ios"))?);
    row.seconds = real(row.ops) / row.ops_per_second.max(1e-9);
    row.value_size = access.bytes() as u64;
    row.mean_us = number(format!("/{direction}/lat_ns/mean"))? / 1e3;
    let percentile = |quantile: &str| {
        number(format!("/{direction}/clat_ns/percentile/{quantile}")).unwrap_or(0.0) / 1e3
    };
    row.p50_us = percentile("50.000000");
    row.p99_us = percentile("99.000000");
    row.p999_us = percentile("99.900000");
    Ok(row)
}

/// The argument for one file: fio takes what a colon divides for several.
fn file_name(path: &str) -> String {
    format!("--filename={}", path.replace('\\', "\\\\").replace(':', "\\:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_fio_are_understood() {
        let told = serde_json::json!({"jobs": [{"read": {
            "iops": 1000.0, "total_ios": 500,
            "lat_ns": {"mean": 2000.0},
            "clat_ns": {"percentile": {"50.000000": 1500, "99.000000": 9000, "99.900000": 10000}}
        }}]});
        let row = read(&told, "read", Access::RandomRead, Row::default()).unwrap();
        assert_eq!((row.ops, row.value_size), (500, 4096));
        assert!((row.seconds - 0.5).abs() < 1e-9 && (row.p99_us - 9.0).abs() < 1e-9);
        assert!(read(&told, "write", Access::DurableWrite, Row::default()).is_err());
    }

    #[test]
    fn a_path_is_one_file_whatever_stands_in_it() {
        assert_eq!(
            file_name("/dev/disk/pci-0000:01:00.0"),
            r"--filename=/dev/disk/pci-0000\:01\:00.0"
        );
        assert_eq!(file_name(r"a\b"), r"--filename=a\\b");
    }
}
