//! A bounded queue from many senders to one receiver.

use crate::task::{cancelled_error, is_cancelled};
use crate::wake::{self, Waker};
use esker_base::{Error, ErrorKind, Result};
use parking_lot::Mutex as Lock;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

struct State<T> {
    queue: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receiver_gone: bool,
    receiver: Option<Waker>,
    waiting_senders: VecDeque<Waker>,
}

struct Shared<T>(Lock<State<T>>);

/// The sending side. Clones send to the same receiver.
pub struct Sender<T>(Arc<Shared<T>>);

/// The receiving side. It may go to another thread, but is one at a time's: one waker is remembered.
pub struct Receiver<T>(Arc<Shared<T>>, PhantomData<Cell<()>>);

/// A message that could not be sent, and why: `Closed` or `Cancelled`.
pub struct SendError<T> {
    /// The message, given back.
    pub message: T,
    /// What went wrong.
    pub error: Error,
}

/// A queue of at most `capacity` messages (at least one), for any cores and threads.
#[must_use]
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared(Lock::new(State {
        queue: VecDeque::new(),
        capacity: capacity.max(1),
        senders: 1,
        receiver_gone: false,
        receiver: None,
        waiting_senders: VecDeque::new(),
    })));
    (Sender(Arc::clone(&shared)), Receiver(shared, PhantomData))
}

impl<T> Sender<T> {
    /// Sends; waits while the queue is full.
    ///
    /// # Errors
    /// `Closed` when the receiver is gone, `Cancelled` when the run-time shuts down while the
    /// queue is full; the message comes back.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut enlisted: Option<Waker> = None;
        loop {
            let mut state = self.0.0.lock();
            let refusal = if state.receiver_gone {
                Some(Error::new(ErrorKind::Closed, "send message"))
            } else if state.queue.len() >= state.capacity && is_cancelled() {
                Some(cancelled_error("send message"))
            } else {
                None
            };
            if let Some(error) = refusal {
                pass_on(&mut state, enlisted.as_ref());
                return Err(SendError { message, error });
            }
            if state.queue.len() < state.capacity {
                state.queue.push_back(message);
                let receiver = state.receiver.take();
                if let Some(waker) = &enlisted {
                    state.waiting_senders.retain(|other| !other.is_same(waker));
                }
                drop(state);
                if let Some(receiver) = receiver {
                    receiver.wake();
                }
                return Ok(());
            }
            let waker = enlisted.get_or_insert_with(Waker::current);
            if !state.waiting_senders.iter().any(|other| other.is_same(waker)) {
                state.waiting_senders.push_back(waker.clone());
            }
            drop(state);
            wake::park("room in a channel");
        }
    }

    /// Sends if there is room.
    ///
    /// # Errors
    /// `Closed` when the receiver is gone, `NoSpace` when the queue is full.
    pub fn try_send(&self, message: T) -> Result<(), SendError<T>> {
        let mut state = self.0.0.lock();
        let kind = match () {
            () if state.receiver_gone => ErrorKind::Closed,
            () if state.queue.len() >= state.capacity => ErrorKind::NoSpace,
            () => {
                state.queue.push_back(message);
                let receiver = state.receiver.take();
                drop(state);
                if let Some(receiver) = receiver {
                    receiver.wake();
                }
                return Ok(());
            }
        };
        Err(SendError { message, error: Error::new(kind, "send message") })
    }
}

/// A sender leaves without using the room it may have been woken for: the next one gets it.
fn pass_on<T>(state: &mut State<T>, leaving: Option<&Waker>) {
    let Some(leaving) = leaving else { return };
    let before = state.waiting_senders.len();
    state.waiting_senders.retain(|other| !other.is_same(leaving));
    if state.waiting_senders.len() == before
        && let Some(next) = state.waiting_senders.pop_front()
    {
        next.wake();
    }
}

impl<T> Receiver<T> {
    /// The next message; waits for it.
    ///
    /// # Errors
    /// `Closed` when the queue is empty and every sender gone, `Cancelled` when it is empty and the
    /// run-time shuts down.
    pub fn receive(&self) -> Result<T> {
        loop {
            let mut state = self.0.0.lock();
            if let Some(message) = state.queue.pop_front() {
                let sender = state.waiting_senders.pop_front();
                drop(state);
                if let Some(sender) = sender {
                    sender.wake();
                }
                return Ok(message);
            }
            if state.senders == 0 {
                return Err(Error::new(ErrorKind::Closed, "receive message"));
            }
            if is_cancelled() {
                return Err(cancelled_error("receive message"));
            }
            state.receiver = Some(Waker::current());
            drop(state);
            wake::park("message in a channel");
        }
    }

    /// Messages in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.0.lock().queue.len()
    }

    /// Whether no message waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.0.lock().senders += 1;
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.senders -= 1;
        let receiver = if state.senders == 0 { state.receiver.take() } else { None };
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let (senders, messages) = {
            let mut state = self.0.0.lock();
            state.receiver_gone = true;
            (std::mem::take(&mut state.waiting_senders), std::mem::take(&mut state.queue))
        };
        // A message's own drop may use the channel; it runs without the lock.
        drop(messages);
        for sender in senders {
            sender.wake();
        }
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for SendError<T> {}

impl<T> From<SendError<T>> for Error {
    fn from(refused: SendError<T>) -> Error {
        refused.error
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}
