//! Real overflows, in child processes: this test binary calls itself.

use crate::runtime::tests::runtime;
use crate::{Facility, sim};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

const CHILD: &str = "ESKER_TRT_OVERFLOW";

#[expect(unconditional_recursion, reason = "overflows on purpose")]
fn recurse(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    recurse(depth + 1) + std::hint::black_box(frame)[0]
}

fn child(name: &str, mode: &str) -> (Option<i32>, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, mode)
        .output()
        .unwrap();
    (output.status.signal(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_overflow_says_so_and_aborts() {
    const NAME: &str = "overflow::tests::an_overflow_says_so_and_aborts";
    match std::env::var(CHILD).as_deref() {
        Ok("task") => {
            drop(runtime(Facility::Sync, 1).spawn(|| recurse(0)).join());
        }
        Ok("simulation") => drop(sim::run(1, || recurse(0))),
        Ok("fault") => {
            let task = runtime(Facility::Sync, 1).spawn(super::tests_fault);
            drop(task.join());
        }
        _ => {
            for mode in ["task", "simulation"] {
                let (signal, words) = child(NAME, mode);
                assert_eq!(signal, Some(libc::SIGABRT), "{words}");
                assert!(words.contains("stack overflow in task"), "{words}");
            }
            // Any other fault stays what it is.
            let (signal, words) = child(NAME, "fault");
            assert_eq!(signal, Some(libc::SIGSEGV), "{words}");
            assert!(!words.contains("stack overflow in task"), "{words}");
        }
    }
}
