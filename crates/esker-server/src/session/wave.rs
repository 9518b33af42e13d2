//! Units of one wave, at the same time as far as the core has room for tasks.

use super::Session;
use crate::execute::{Action, Answer, Ground, Unit};
use crate::limits::UNIT_WORK;
use crate::place::TaskPlace;
use crate::transport::Transport;
use esker_trt::JoinHandle;

/// A unit of a wave that was started.
enum Begun {
    Done((Unit, Answer)),
    /// What is known of the unit, should its task fail, and the task.
    Task(Unit, JoinHandle<(Unit, Answer)>),
}

impl<T: Transport> Session<T> {
    /// Runs the wave and appends its replies.
    pub(super) fn run_wave(&mut self) {
        if self.wave.is_empty() {
            return;
        }
        // Units that wait for nothing must not keep the core from the others.
        esker_trt::work(self.wave.len().saturating_mul(UNIT_WORK));
        self.work();
        self.note_request();
        self.shared.flush_if_due(self.core);
        self.wave_bytes = 0;
        let mut wave = std::mem::take(&mut self.wave);
        let last = wave.pop();
        let begun = self.begin_all(&mut wave);
        // The only unit of most waves runs in the session's own task.
        let last = last.map(|unit| self.run_here(unit));
        for begun in begun {
            let (unit, answer) = match begun {
                Begun::Done(done) => done,
                Begun::Task(blank, task) => task.join().unwrap_or_else(|error| {
                    // It panicked, or never began.
                    self.ground().report(&error);
                    (blank, Answer::Failed(error))
                }),
            };
            self.reply(unit, answer);
        }
        if let Some((unit, answer)) = last {
            self.reply(unit, answer);
        }
        // Its room serves the next wave.
        self.wave = wave;
    }

    pub(super) fn run_here(&self, mut unit: Unit) -> (Unit, Answer) {
        let answer = self.ground().run(&mut unit, self.received.all());
        (unit, answer)
    }

    /// Starts all units of `wave` that take time as tasks beside this one.
    fn begin_all(&self, wave: &mut Vec<Unit>) -> Vec<Begun> {
        let concurrent = esker_trt::in_task();
        let units = wave.drain(..);
        units
            .map(|unit| match unit.action {
                Action::Say(_) => Begun::Done(self.run_here(unit)),
                _ if !concurrent => Begun::Done(self.run_here(unit)),
                _ => match TaskPlace::take(&self.shared, self.core) {
                    Some(place) => Begun::Task(unit.blank(), self.begin(unit, place)),
                    None => Begun::Done(self.run_here(unit)),
                },
            })
            .collect()
    }

    /// Runs a unit in a task of its own.
    fn begin(&self, mut unit: Unit, place: TaskPlace) -> JoinHandle<(Unit, Answer)> {
        let (buffer, connection) = (self.received.share(), self.number());
        esker_trt::spawn(move || {
            let ground = Ground { connection, ..place.ground() };
            let answer = ground.run(&mut unit, &buffer);
            (unit, answer)
        })
    }
}
