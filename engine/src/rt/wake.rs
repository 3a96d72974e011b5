//! How a foreign thread reaches a core's loop: another core with a full basket in the mesh, the housekeeping thread.

use std::fmt;
use std::sync::Arc;

/// Wakes one core's loop; the driver sees `Event::Woken`. Cheap when the loop is awake already. From any thread.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
