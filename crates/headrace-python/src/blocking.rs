//! The one doorway for calls that block: detached from the interpreter, with Ctrl-C polled.

use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;
use headrace::cancel::Cancel;
use headrace::{Error, Result};
use pyo3::prelude::*;

use crate::errors::to_python;

/// How often signals are looked at. Ctrl-C is to act within 100 ms.
pub(crate) const POLL: Duration = Duration::from_millis(50);

/// Runs `work` on a thread of its own and waits for it. `tick` is called between, attached; if it fails, or a signal
/// handler does, the work is cancelled and waited for.
pub(crate) fn blocking<T: Send>(
    py: Python<'_>,
    cancel: &Cancel,
    mut tick: impl FnMut(Python<'_>) -> PyResult<()>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    let (send, receive) = crossbeam_channel::bounded(1);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let done = done.unwrap_or_else(|_| Err(Error::Internal("a panic, see above".to_owned())));
            // The receiver outlives this thread.
            drop(send.send(done));
        });
        loop {
            match py.detach(|| receive.recv_timeout(POLL)) {
                Ok(done) => return done.map_err(to_python),
                Err(RecvTimeoutError::Disconnected) => return Err(to_python(Error::Cancelled)),
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(error) = py.check_signals().and_then(|()| tick(py)) {
                        cancel.cancel();
                        // Its result does not matter any more.
                        drop(py.detach(|| receive.recv()));
                        return Err(error);
                    }
                }
            }
        }
    })
}
