//! Every setting of the server, in the order in which people meet them.

use super::{Setting, values};

pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        name: "data",
        value: Some("DIR"),
        default: "./forebay-data",
        help: "Where the data is kept. Made if it is absent",
        set: |settings, text| values::into(&mut settings.data, values::path(text)),
    },
    Setting {
        name: "listen",
        value: Some("ADDRESS"),
        default: "127.0.0.1:7070",
        help: "Where the native API listens, HTTP and gRPC on one port. Port 0 takes a free one",
        set: |settings, text| values::into(&mut settings.listen, values::address(text)),
    },
    Setting {
        name: "memory",
        value: None,
        default: "false",
        help: "Keep everything in memory and nothing after the end",
        set: |settings, text| values::into(&mut settings.memory, values::switch(text)),
    },
    Setting {
        name: "allow_anyone",
        value: None,
        default: "false",
        help: "Listen beyond this machine although there is no authentication: whoever reaches the port may do \
               everything",
        set: |settings, text| values::into(&mut settings.allow_anyone, values::switch(text)),
    },
    Setting {
        name: "log",
        value: Some("auto|text|json"),
        default: "auto",
        help: "How the log is written. auto: text on a terminal, JSON lines elsewhere",
        set: |settings, text| values::into(&mut settings.log, values::log_format(text)),
    },
    Setting {
        name: "log_level",
        value: Some("error|warn|info|debug"),
        default: "info",
        help: "What the log says at least",
        set: |settings, text| values::into(&mut settings.log_level, values::log_level(text)),
    },
    Setting {
        name: "drain_timeout",
        value: Some("TIME"),
        default: "10s",
        help: "How long consumers have to finish what they hold when the server stops",
        set: |settings, text| values::into(&mut settings.drain_timeout, values::duration(text)),
    },
    Setting {
        name: "auto_create",
        value: None,
        default: "true",
        help: "Whether publishing to a stream that does not exist creates it",
        set: |settings, text| values::into(&mut settings.auto_create, values::switch(text)),
    },
    Setting {
        name: "auto_create_max_bytes",
        value: Some("SIZE"),
        default: "10GiB",
        help: "What such a stream may hold, so that a typing mistake cannot fill the disk",
        set: |settings, text| values::into(&mut settings.auto_create_max_bytes, values::size(text)),
    },
    Setting {
        name: "max_connections",
        value: Some("N"),
        default: "20000",
        help: "Connections that may be open at a time; one more is told that the server is busy",
        set: |settings, text| values::into(&mut settings.max_connections, values::count(text)),
    },
    Setting {
        name: "host_names",
        value: Some("NAMES|none"),
        default: "none",
        help: "Names by which clients call the server over HTTP, with commas between them; its addresses and \
               localhost are known",
        set: |settings, text| values::into(&mut settings.host_names, values::names(text)),
    },
    Setting {
        name: "request_bytes",
        value: Some("SIZE"),
        default: "64MiB",
        help: "Bodies of HTTP requests that may be read at a time, and as much again of gRPC messages",
        set: |settings, text| values::into(&mut settings.request_bytes, values::memory_size(text)),
    },
    Setting {
        name: "window_bytes",
        value: Some("SIZE"),
        default: "32MiB",
        help: "Contents of messages that are kept in memory",
        set: |settings, text| values::into(&mut settings.window_bytes, values::memory_size(text)),
    },
    Setting {
        name: "room_bytes",
        value: Some("SIZE"),
        default: "64MiB",
        help: "Batches that may be on their way to the disk at a time",
        set: |settings, text| values::into(&mut settings.room_bytes, values::memory_size(text)),
    },
    Setting {
        name: "disk_max_bytes",
        value: Some("SIZE|none"),
        default: "none",
        help: "What the data folder may take at most, the reserve included. none: as much as the disk has",
        set: |settings, text| values::into(&mut settings.disk_max_bytes, values::or_none(text, values::size)),
    },
    Setting {
        name: "free_bytes_min",
        value: Some("SIZE"),
        default: "128MiB",
        help: "Publishing is refused while less than this is free, until twice as much is",
        set: |settings, text| values::into(&mut settings.free_bytes_min, values::size(text)),
    },
    Setting {
        name: "reserve_bytes",
        value: Some("SIZE"),
        default: "256MiB",
        help: "Space set aside so that settling goes on when the disk is full. Four segments at least",
        set: |settings, text| values::into(&mut settings.reserve_bytes, values::size(text)),
    },
    Setting {
        name: "segment_bytes",
        value: Some("SIZE"),
        default: "64MiB",
        help: "Size of a file of the log. Counts when the data folder is made, and stays",
        set: |settings, text| values::into(&mut settings.segment_bytes, values::segment_size(text)),
    },
];
