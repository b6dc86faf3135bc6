//! The queue and the writer under a scheduler that tests steer.

mod schedules;
