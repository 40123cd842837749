//! Small utilities without a better home.

pub(crate) mod bounded_channel;
pub(crate) mod client_slots;
pub(crate) mod fair_work_queue;
#[cfg(test)]
pub(crate) mod generated_file;
pub(crate) mod lock;
pub(crate) mod panic_message;
pub(crate) mod random_ids;
pub(crate) mod service_counts;
pub(crate) mod shutdown;
pub(crate) mod text_file;
pub(crate) mod thread_priority;
