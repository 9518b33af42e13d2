//! Whole cells on systems that misbehave.

use super::*;
use crate::plan::Plan;
use crate::system::{OpenOptions, Registry, Session, System};
use crate::{Failure, Outcome};
use esker_trt::{Config, Runtime};
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
