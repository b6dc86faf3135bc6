//! The order of the engine's locks. docs/architecture.md says what each guards and how long it is held; a test compares both lists.

macro_rules! ranks {
    ($($name:ident),* $(,)?) => {
        #[repr(u8)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "one list makes the constants and their numbers")]
        enum Number { $($name),* }
        $(pub const $name: u8 = Number::$name as u8;)*

        /// All locks, in the order in which a thread may take them.
        #[cfg(any(test, annals_shuttle))]
        pub const ALL: &[&str] = &[$(stringify!($name)),*];
    };
}

ranks! {
    REPLAYER_TURNS,
    CALL_FAILURE,
    DRAWS_PENDING,
    DRAWS_LEFT,
    STREAM_STATE,
    RUN_STATE,
    MEMORY_UPDATE,
    MEMORY_SEARCH_FAILURE,
    FORKING,
    LAYER_STATES,
    DELIBERATION,
    RUN_NAMES,
    DEFERRED_VALUES,
    ENDED_RUNS,
    TAIL_THREAD,
    COMPACTING,
    SPACES,
    VECTOR_MAKING,
    VECTOR_FILES,
    VECTOR_CATCH_UP,
    VECTOR_WORKER,
    VECTOR_EXPECTED,
    VECTOR_NAMES,
    VECTOR_PARTITIONS,
    VECTOR_LEVELS,
    VECTOR_BITMAPS,
    COMPACT_PROGRESS,
    CREW_RESULTS,
    TAKEN_SEGMENT,
    LIVE_BYTES,
    PARALLEL_JOBS,
    PARALLEL_RESULTS,
    STREAM_EXTENTS,
    SALTS,
    RAW_TAIL,
    FOLLOWED,
    COUNTED_LOG,
    LOG_WRITER,
    QUEUE_ORDER,
    QUEUE_BUDGET,
    LOG_ROOM,
    SPARE_BUFFERS,
    WRITER_INBOX,
    TICKET,
    UPKEEP_THREAD,
    UPKEEP_STATE,
    INDEX_TABLES,
    FENCE_STATE,
    MANIFEST,
    UNLISTED_TABLES,
    REBUILT_TABLES,
    VIEWS,
    HISTORY_POLICIES,
    SPACE_NAMES,
    WRITER_THREAD,
    LOCK_FILE,
    GROUP_DECODING,
    INDEX_LEVELS,
    MEMTABLE,
    SEGMENTS,
    SEGMENT_LIST,
    RETIRED_SEGMENTS,
    SEGMENT_ERA,
    GROUP_DECODERS,
    CACHE,
    PATCHES,
    SIMULATED_DISK,
}

/// The name of a rank.
#[cfg(annals_shuttle)]
pub fn name(rank: u8) -> &'static str {
    ALL.get(usize::from(rank)).copied().unwrap_or("?")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_in_the_documents_lists_all_ranks_in_order() {
        let text = include_str!("../../../../docs/architecture.md");
        let table = text.split("| rank | lock | held while |").nth(1).unwrap_or_default();
        let rows = table.lines().skip(2).map_while(|line| line.strip_prefix("| `"));
        let listed: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(listed, super::ALL);
    }
}
