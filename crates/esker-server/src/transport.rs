//! A connection.
use std::io::{IoSlice, Read, Result, Write};
use std::time::Duration;

pub(crate) struct Connection(pub(crate) socket2::Socket);

impl Connection {
    pub(crate) fn read(&mut self, into: &mut [u8], timeout: Option<Duration>) -> Result<usize> {
        self.0.set_read_timeout(timeout)?;
        self.0.read(into)
    }
    pub(crate) fn write_vectored(&mut self, slices: &[IoSlice<'_>], timeout: Option<Duration>) -> Result<usize> {
        self.0.set_write_timeout(timeout)?;
        self.0.write_vectored(slices)
    }
}
pub(crate) struct JoinHandle<T>(T);
impl<T> JoinHandle<T> { pub(crate) fn join(self) -> esker::Result<T> { Ok(self.0) } }
pub(crate) fn spawn<T>(f: impl FnOnce() -> T) -> JoinHandle<T> { JoinHandle(f()) }
pub(crate) fn in_task() -> bool { false }
