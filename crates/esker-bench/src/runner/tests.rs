//! Whole cells on systems that misbehave.

use super::*;
use crate::plan::Plan;
use crate::system::{OpenOptions, Registry, Session, System};
use crate::{Failure, Outcome};
use esker_trt::{Config, Runtime};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Has every key; the tenth read of all panics.
#[derive(Clone)]
struct Panics {
    reads: Arc<AtomicU64>,
    runtime: Option<Arc<Runtime>>,
}

fn of_threads(_: &OpenOptions) -> Outcome<Box<dyn System>> {
    Ok(Box::new(Panics { reads: Arc::default(), runtime: None }))
}

fn of_tasks(_: &OpenOptions) -> Outcome<Box<dyn System>> {
    let runtime = Runtime::start(Config { cores: 1, ..Config::default() })?;
    Ok(Box::new(Panics { reads: Arc::default(), runtime: Some(Arc::new(runtime)) }))
}

impl System for Panics {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        Ok(Box::new(self.clone()))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }

    fn runtime(&self) -> Option<Arc<Runtime>> {
        self.runtime.clone()
    }

    fn options(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

impl Session for Panics {
    fn read(&mut self, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        assert_ne!(self.reads.fetch_add(1, Ordering::Relaxed), 9, "on purpose");
        Ok(true)
    }

    fn write(&mut self, _: &[u8], _: &[u8]) -> Outcome<()> {
        Ok(())
    }

    fn delete(&mut self, _: &[u8]) -> Outcome<()> {
        Ok(())
    }

    fn scan(&mut self, _: &[u8], _: u64, _: &mut dyn FnMut(&[u8], &[u8])) -> Outcome<u64> {
        Ok(0)
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a run that hangs must not take the test with it")]
fn a_client_that_panics_fails_its_cell() {
    for open in [of_threads, of_tasks] {
        let mut kind = Registry::new().find("hashmap").unwrap().0.clone();
        (kind.name, kind.open, kind.keeps_values) = ("panics", open, false);
        let registry = Registry::new().with(vec![kind]);
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan {
            workload: Some(vec!["readrandom".to_owned()]),
            systems: Some(vec!["panics".to_owned()]),
            seconds: Some(30.0),
            records: Some(100),
            ..Plan::defaults()
        };
        let cells = plan.cells(&folder.path().join("data")).unwrap();
        let cell = cells.first().unwrap().clone();
        let (done, told) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = done.send(run(&cell, &registry, &mut |_| ()));
        });
        let outcome: Outcome<()> =
            told.recv_timeout(Duration::from_secs(20)).expect("it ends long before the phase");
        let failure: Failure = outcome.unwrap_err();
        assert!(failure.to_string().contains("panic"), "{failure}");
    }
}

#[test]
fn why_a_cell_failed_is_said_though_its_folder_cannot_be_removed() {
    let mut kind = Registry::new().find("hashmap").unwrap().0.clone();
    kind.name = "fails";
    kind.open = |options| {
        // From here on nobody knows whose the folder is.
        crate::files::remove_file(&options.folder.with_file_name("of-esker-bench"))?;
        Err(Failure::new("on purpose"))
    };
    let registry = Registry::new().with(vec![kind]);
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        workload: Some(vec!["readrandom".to_owned()]),
        systems: Some(vec!["fails".to_owned()]),
        records: Some(100),
        ..Plan::defaults()
    };
    let cells = plan.cells(folder.path()).unwrap();
    let failure = run(&cells[0], &registry, &mut |_| ()).unwrap_err().to_string();
    assert!(failure.contains("on purpose"), "{failure}");
    assert!(folder.path().join("esker-bench-cell/data").exists(), "it stays");
}

/// Has every key, and notes for which each session is asked: the number of the session.
struct Asked(usize);

static ASKED: Mutex<Vec<Vec<Vec<u8>>>> = Mutex::new(Vec::new());

impl System for Asked {
    fn session(&self) -> Outcome<Box<dyn Session>> {
        let mut asked = ASKED.lock();
        asked.push(Vec::new());
        Ok(Box::new(Asked(asked.len() - 1)))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }

    fn options(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

impl Session for Asked {
    fn read(&mut self, key: &[u8], _: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        ASKED.lock()[self.0].push(key.to_vec());
        Ok(true)
    }

    fn write(&mut self, key: &[u8], _: &[u8]) -> Outcome<()> {
        ASKED.lock()[self.0].push(key.to_vec());
        Ok(())
    }

    fn delete(&mut self, _: &[u8]) -> Outcome<()> {
        Ok(())
    }

    fn scan(&mut self, _: &[u8], _: u64, _: &mut dyn FnMut(&[u8], &[u8])) -> Outcome<u64> {
        Ok(0)
    }
}

/// What one workload brought to a cache is no help to the next.
#[test]
fn each_workload_of_a_cell_asks_for_keys_of_its_own() {
    let mut kind = Registry::new().find("hashmap").unwrap().0.clone();
    (kind.name, kind.keeps_values) = ("asked", false);
    kind.open = |_| Ok(Box::new(Asked(0)));
    let registry = Registry::new().with(vec![kind]);
    let folder = tempfile::tempdir().unwrap();
    let asked = |names: &[&str], write_ratio: Option<Vec<f64>>| {
        let plan = Plan {
            workload: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            systems: Some(vec!["asked".to_owned()]),
            records: Some(10_000),
            threads: Some(vec![1]),
            operations: Some(1000),
            warmup: Some(0.0),
            write_ratio,
            ..Plan::defaults()
        };
        let cells = plan.cells(&folder.path().join("data")).unwrap();
        ASKED.lock().clear();
        run(&cells[0], &registry, &mut |_| ()).unwrap();
        std::mem::take(&mut *ASKED.lock())
    };
    let mix = Some(vec![20.0, 80.0]);
    for (names, mix) in [(&["ycsb-a", "ycsb-c"][..], None), (&["pacman"], mix)] {
        let keys = asked(names, mix.clone());
        assert_eq!(keys.iter().map(Vec::len).collect::<Vec<_>>(), [10_000, 1000, 1000]);
        // A zipfian draw meets the same keys often.
        let alike = keys[1].iter().zip(&keys[2]).filter(|(one, other)| one == other).count();
        assert!(alike < 100, "{names:?}: {alike} of 1000");
        assert_eq!(keys, asked(names, mix), "another run asks for the same");
    }
}
