//! Every setting of the server, in the order in which people meet them.

use super::{Setting, values};
use crate::serve::jwt::KeySource;

pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        name: "data",
        value: Some("DIR"),
        default: "./forebay-data",
        help: "Data folder. It is created if it does not exist",
        set: |settings, text| values::into(&mut settings.data, values::path(text)),
    },
    Setting {
        name: "listen",
        value: Some("ADDRESS"),
        default: "127.0.0.1:7070",
        help: "Address of the native API, HTTP and gRPC on one port. Port 0 takes a free one",
        set: |settings, text| values::into(&mut settings.listen, values::address(text)),
    },
    Setting {
        name: "sqs",
        value: Some("ADDRESS|none"),
        default: "127.0.0.1:9324",
        help: "Address of the SQS API. If it is not set and the port is in use, SQS is disabled with a \
               warning",
        set: |settings, text| values::into(&mut settings.sqs, values::or_none(text, values::address)),
    },
    Setting {
        name: "sqs_keys",
        value: Some("FILE|none"),
        default: "none",
        help: "File with the access keys that SQS clients sign with, in the format of an AWS credentials \
               file, each with its account if it has one. none: any key is accepted",
        set: |settings, text| values::into(&mut settings.sqs_keys, values::or_none(text, values::path)),
    },
    Setting {
        name: "sqs_url",
        value: Some("URL|none"),
        default: "none",
        help: "Beginning of all queue URLs. none: taken from the Host header of the request",
        set: |settings, text| values::into(&mut settings.sqs_url, values::or_none(text, values::base_url)),
    },
    Setting {
        name: "sqs_trust_forwarded",
        value: None,
        default: "false",
        help: "Make queue URLs from X-Forwarded-Host and X-Forwarded-Proto, which a proxy sets",
        set: |settings, text| values::into(&mut settings.sqs_trust_forwarded, values::switch(text)),
    },
    Setting {
        name: "sqs_waits",
        value: None,
        default: "false",
        help: "Enforce the 60-second waits of AWS after DeleteQueue and between two PurgeQueue calls",
        set: |settings, text| values::into(&mut settings.sqs_waits, values::switch(text)),
    },
    Setting {
        name: "kurrent",
        value: Some("ADDRESS|none"),
        default: "127.0.0.1:2113",
        help: "Address for KurrentDB and EventStoreDB clients, gRPC and HTTP on one port. If it is not set and the \
               port is in use, it is disabled with a warning",
        set: |settings, text| values::into(&mut settings.kurrent, values::or_none(text, values::address)),
    },
    Setting {
        name: "memory",
        value: None,
        default: "false",
        help: "Keep all data in memory. It is lost when the server exits",
        set: |settings, text| values::into(&mut settings.memory, values::switch(text)),
    },
    Setting {
        name: "engine",
        value: Some("journal|jetstream"),
        default: "journal",
        help: "Where the log is: in the data folder, or, as an experiment, in streams of NATS JetStream, from where a \
               standby can take over",
        set: |settings, text| values::into(&mut settings.engine, values::engine(text)),
    },
    Setting {
        name: "nats",
        value: Some("URLS|none"),
        default: "none",
        help: "NATS servers for the engine jetstream, separated by commas, such as nats://10.0.0.1:4222. User and \
               password may be part of it",
        set: |settings, text| values::into(&mut settings.nats, values::texts(text)),
    },
    Setting {
        name: "nats_monitors",
        value: Some("ADDRESSES|none"),
        default: "none",
        help: "Monitoring addresses of all NATS servers, separated by commas. They prove that the servers sync \
               before they acknowledge",
        set: |settings, text| values::into(&mut settings.nats_monitors, values::texts(text)),
    },
    Setting {
        name: "nats_accept_loss",
        value: None,
        default: "false",
        help: "Start without that proof: a loss of power may lose messages that were confirmed",
        set: |settings, text| values::into(&mut settings.nats_accept_loss, values::switch(text)),
    },
    Setting {
        name: "nats_ca",
        value: Some("FILE|none"),
        default: "none",
        help: "File with the certificates of authorities for connections to NATS, which then use TLS",
        set: |settings, text| values::into(&mut settings.nats_ca, values::or_none(text, values::path)),
    },
    Setting {
        name: "nats_user_file",
        value: Some("FILE|none"),
        default: "none",
        help: "File with user and password for NATS, USER:PASSWORD in one line, so that they need not be part of nats",
        set: |settings, text| values::into(&mut settings.nats_user_file, values::or_none(text, values::path)),
    },
    Setting {
        name: "nats_replicas",
        value: Some("N"),
        default: "3",
        help: "How many NATS servers keep each stream. Counts when the streams are created",
        set: |settings, text| values::into(&mut settings.nats_replicas, values::replicas(text)),
    },
    Setting {
        name: "nats_max_bytes",
        value: Some("SIZE|none"),
        default: "none",
        help: "Maximum size of the log's stream. Counts when the stream is created. none: limited by the NATS \
               servers only",
        set: |settings, text| values::into(&mut settings.nats_max_bytes, values::or_none(text, values::size)),
    },
    Setting {
        name: "cluster",
        value: Some("NAME|none"),
        default: "none",
        help: "Name of the cluster, which names its streams in NATS. All nodes have the same. Needed for the engine \
               jetstream",
        set: |settings, text| values::into(&mut settings.cluster, values::or_none(text, values::text)),
    },
    Setting {
        name: "node",
        value: Some("NAME|none"),
        default: "none",
        help: "Name of this node, which differs from node to node. Needed for the engine jetstream",
        set: |settings, text| values::into(&mut settings.node, values::or_none(text, values::text)),
    },
    Setting {
        name: "advertise",
        value: Some("ADDRESS|none"),
        default: "none",
        help: "Host and port at which other nodes of the cluster reach this one. none: the address that it listens on",
        set: |settings, text| values::into(&mut settings.advertise, values::or_none(text, values::text)),
    },
    Setting {
        name: "tenure",
        value: Some("TIME"),
        default: "3s",
        help: "How long a node may serve after the last sign that it owns the log. A standby waits a quarter longer \
               before it takes over. All nodes have the same",
        set: |settings, text| values::into(&mut settings.tenure, values::tenure(text)),
    },
    Setting {
        name: "tls_cert",
        value: Some("FILE|none"),
        default: "none",
        help: "Certificate of the server in PEM, with the certificates that signed it after it: all APIs are then \
               served over TLS. It is read again when it changes",
        set: |settings, text| values::into(&mut settings.tls_cert, values::or_none(text, values::path)),
    },
    Setting {
        name: "tls_key",
        value: Some("FILE|none"),
        default: "none",
        help: "Private key of the certificate, in PEM",
        set: |settings, text| values::into(&mut settings.tls_key, values::or_none(text, values::path)),
    },
    Setting {
        name: "tls_client_ca",
        value: Some("FILE|none"),
        default: "none",
        help: "Certificates, in PEM, of the authorities that sign the certificates of clients. A client is then \
               recognised by its certificate. It is read again when it changes",
        set: |settings, text| values::into(&mut settings.tls_client_ca, values::or_none(text, values::path)),
    },
    Setting {
        name: "tls_client_names",
        value: Some("FILE|none"),
        default: "none",
        help: "File with the rights of clients with certificates, one name and its grants on each line, as \
               `billing.internal worker:orders-*`. It is read again when it changes",
        set: |settings, text| {
            values::into(&mut settings.tls_client_names, values::or_none(text, values::path))
        },
    },
    Setting {
        name: "jwt_issuer",
        value: Some("URL|none"),
        default: "none",
        help: "Issuer of JSON Web Tokens by which clients are recognised, as the claim iss has it",
        set: |settings, text| values::into(&mut settings.jwt_issuer, values::or_none(text, values::text)),
    },
    Setting {
        name: "jwt_audience",
        value: Some("TEXT|none"),
        default: "none",
        help: "Audience that these tokens must be for, as the claim aud has it",
        set: |settings, text| values::into(&mut settings.jwt_audience, values::or_none(text, values::text)),
    },
    Setting {
        name: "jwt_keys",
        value: Some("FILE|URL|none"),
        default: "none",
        help: "Keys of the issuer, a JSON Web Key Set with keys for RS256, ES256 or EdDSA: a file, which is read again \
               when it changes, or an address, from where they are fetched. none: they are fetched from where the \
               configuration of jwt_issuer says",
        set: |settings, text| values::into(&mut settings.jwt_keys, values::or_none(text, KeySource::parse)),
    },
    Setting {
        name: "jwt_rights",
        value: Some("FILE|none"),
        default: "none",
        help: "File with the rights of tokens, one claim with its value and its grants on each line, as \
               `groups=platform operator:*`. It is read again when it changes",
        set: |settings, text| values::into(&mut settings.jwt_rights, values::or_none(text, values::path)),
    },
    Setting {
        name: "jwt_refresh",
        value: Some("TIME"),
        default: "15m",
        help: "How often keys are fetched from the issuer. They are also fetched when a token names another key, and \
               again after a failure",
        set: |settings, text| values::into(&mut settings.jwt_refresh, values::refresh(text)),
    },
    Setting {
        name: "jwt_ca",
        value: Some("FILE|none"),
        default: "none",
        help: "Certificates, in PEM, of the authorities by which the issuer is recognised over https, in place of \
               those that browsers trust",
        set: |settings, text| values::into(&mut settings.jwt_ca, values::or_none(text, values::path)),
    },
    Setting {
        name: "jwt_allow_http",
        value: None,
        default: "false",
        help: "Fetch keys over unencrypted http from other machines too: anyone who can change packets on the way can \
               then sign tokens",
        set: |settings, text| values::into(&mut settings.jwt_allow_http, values::switch(text)),
    },
    Setting {
        name: "admin_token_file",
        value: Some("FILE|none"),
        default: "none",
        help: "File with the admin token, one line of at least 32 characters. It is read again when it changes. \
               FOREBAY_ADMIN_TOKEN has the token itself instead",
        set: |settings, text| {
            values::into(&mut settings.admin_token_file, values::or_none(text, values::path))
        },
    },
    Setting {
        name: "require_auth",
        value: None,
        default: "false",
        help: "Ask for a token on loopback addresses too. On other addresses the server always asks",
        set: |settings, text| values::into(&mut settings.require_auth, values::switch(text)),
    },
    Setting {
        name: "limits_file",
        value: Some("FILE|none"),
        default: "none",
        help: "File with the limits of clients and streams, one name or pattern and its limits on each line, as \
               `ci requests=100,bytes=1MiB` or `stream:orders-* stored_bytes=10GiB`. It is read again when it changes",
        set: |settings, text| values::into(&mut settings.limits_file, values::or_none(text, values::path)),
    },
    Setting {
        name: "audit_file",
        value: Some("FILE|none"),
        default: "none",
        help: "File for the record of administrative and triage calls, one line of JSON each. At 16 MiB it is renamed; \
               ten are kept",
        set: |settings, text| values::into(&mut settings.audit_file, values::or_none(text, values::path)),
    },
    Setting {
        name: "audit_stream",
        value: None,
        default: "false",
        help: "Publish the same records to the stream $audit, which administrators can read. It keeps 90 days, and \
               64 MiB",
        set: |settings, text| values::into(&mut settings.audit_stream, values::switch(text)),
    },
    Setting {
        name: "encryption_key_file",
        value: Some("FILE|none"),
        default: "none",
        help: "File with the master keys of the data folder, one a line, in hexadecimal digits or base64. New files \
               are encrypted with the first one. FOREBAY_ENCRYPTION_KEY has the keys themselves instead",
        set: |settings, text| {
            values::into(&mut settings.encryption_key_file, values::or_none(text, values::path))
        },
    },
    Setting {
        name: "encryption_key_command",
        value: Some("COMMAND|none"),
        default: "none",
        help: "Command that prints the master keys of the data folder, such as a call of a key management service. It \
               is run by sh, once, at the start",
        set: |settings, text| {
            values::into(&mut settings.encryption_key_command, values::or_none(text, values::command))
        },
    },
    Setting {
        name: "allow_anyone",
        value: None,
        default: "false",
        help: "Let clients without a token in, on every address: anyone who can reach the port can do everything",
        set: |settings, text| values::into(&mut settings.allow_anyone, values::switch(text)),
    },
    Setting {
        name: "alert_webhooks",
        value: Some("URLS|none"),
        default: "none",
        help: "Addresses that are sent alerts about groups, separated by commas. slack+https://… sends the form \
               that Slack takes",
        set: |settings, text| values::into(&mut settings.alert_webhooks, values::webhooks(text)),
    },
    Setting {
        name: "alert_rules",
        value: Some("RULES"),
        default: "*: age 10m, parked 1, no_consumers 1m",
        help: "When groups raise an alert: STREAM/GROUP patterns, each with age TIME, lag N, parked N, \
               no_consumers TIME, or none; rules are separated by semicolons, and the first that fits a group counts",
        set: |settings, text| values::into(&mut settings.alert_rules, values::alert_rules(text)),
    },
    Setting {
        name: "alert_hold",
        value: Some("TIME"),
        default: "30s",
        help: "How long a condition must last before its alert is sent, and be over before the alert is cleared",
        set: |settings, text| values::into(&mut settings.alert_hold, values::duration(text)),
    },
    Setting {
        name: "alert_secret_file",
        value: Some("FILE|none"),
        default: "none",
        help: "File with the secret that alerts are signed with, one line of at least 24 characters. none: alerts \
               are not signed",
        set: |settings, text| {
            values::into(&mut settings.alert_secret_file, values::or_none(text, values::path))
        },
    },
    Setting {
        name: "metrics_series_max",
        value: Some("N"),
        default: "2000",
        help: "Streams, and groups, that have figures of their own in /metrics and over OTLP. Of more, groups that \
               need an operator and those with the largest backlog",
        set: |settings, text| values::into(&mut settings.metrics_series_max, values::count(text)),
    },
    Setting {
        name: "otlp_endpoint",
        value: Some("URL|none"),
        default: "none",
        help: "Address of an OpenTelemetry collector that is sent the metrics, in protobuf over HTTP, for example \
               http://127.0.0.1:4318",
        set: |settings, text| {
            values::into(&mut settings.otlp_endpoint, values::or_none(text, values::endpoint))
        },
    },
    Setting {
        name: "otlp_interval",
        value: Some("TIME"),
        default: "15s",
        help: "How often metrics are sent to otlp_endpoint. At least 1s",
        set: |settings, text| values::into(&mut settings.otlp_interval, values::interval(text)),
    },
    Setting {
        name: "otlp_traces",
        value: None,
        default: "false",
        help: "Send otlp_endpoint also a span for each publish, delivery and answer of a message that carries a \
               sampled trace",
        set: |settings, text| values::into(&mut settings.otlp_traces, values::switch(text)),
    },
    Setting {
        name: "log",
        value: Some("auto|text|json"),
        default: "auto",
        help: "Format of the log. auto: text on a terminal, JSON lines elsewhere",
        set: |settings, text| values::into(&mut settings.log, values::log_format(text)),
    },
    Setting {
        name: "log_level",
        value: Some("error|warn|info|debug"),
        default: "info",
        help: "Minimum level of the log",
        set: |settings, text| values::into(&mut settings.log_level, values::log_level(text)),
    },
    Setting {
        name: "drain_timeout",
        value: Some("TIME"),
        default: "10s",
        help: "How long consumers may finish leased messages when the server stops",
        set: |settings, text| values::into(&mut settings.drain_timeout, values::duration(text)),
    },
    Setting {
        name: "date_jump_max",
        value: Some("TIME|none"),
        default: "366d",
        help: "The server does not start if the machine's date is later than the last time in the log by more than \
               this, because that date is probably wrong",
        set: |settings, text| {
            values::into(&mut settings.date_jump_max, values::or_none(text, values::duration))
        },
    },
    Setting {
        name: "auto_create",
        value: None,
        default: "true",
        help: "Create a stream that does not exist when a message is published to it",
        set: |settings, text| values::into(&mut settings.auto_create, values::switch(text)),
    },
    Setting {
        name: "auto_create_max_bytes",
        value: Some("SIZE"),
        default: "10GiB",
        help: "Size limit of streams that auto_create creates, so that a misspelled name cannot fill the \
               disk",
        set: |settings, text| values::into(&mut settings.auto_create_max_bytes, values::size(text)),
    },
    Setting {
        name: "max_connections",
        value: Some("N"),
        default: "20000",
        help: "Maximum number of connections of each API. A client beyond it is told that the server is busy",
        set: |settings, text| values::into(&mut settings.max_connections, values::count(text)),
    },
    Setting {
        name: "max_connections_per_address",
        value: Some("N|none"),
        default: "none",
        help: "Maximum number of connections of each API from one IP address. none: as many as max_connections, as a \
               proxy in front of the server needs",
        set: |settings, text| {
            values::into(&mut settings.max_connections_per_address, values::or_none(text, values::count))
        },
    },
    Setting {
        name: "host_names",
        value: Some("NAMES|none"),
        default: "none",
        help: "Names by which clients call the server over HTTP, separated by commas. IP addresses and \
               localhost are always accepted",
        set: |settings, text| values::into(&mut settings.host_names, values::names(text)),
    },
    Setting {
        name: "request_bytes",
        value: Some("SIZE"),
        default: "64MiB",
        help: "Memory for bodies of HTTP requests that are being read; gRPC, SQS and Kurrent each get the same \
               amount again",
        set: |settings, text| values::into(&mut settings.request_bytes, values::memory_size(text)),
    },
    Setting {
        name: "reply_bytes",
        value: Some("SIZE"),
        default: "64MiB",
        help: "Memory for replies that clients have not taken yet; messages handed out to consumers get twice as \
               much. A request that finds no room is told that the server is busy",
        set: |settings, text| values::into(&mut settings.reply_bytes, values::memory_size(text)),
    },
    Setting {
        name: "window_bytes",
        value: Some("SIZE"),
        default: "32MiB",
        help: "Memory for contents of messages",
        set: |settings, text| values::into(&mut settings.window_bytes, values::memory_size(text)),
    },
    Setting {
        name: "room_bytes",
        value: Some("SIZE"),
        default: "64MiB",
        help: "Memory for batches that are being written to disk",
        set: |settings, text| values::into(&mut settings.room_bytes, values::memory_size(text)),
    },
    Setting {
        name: "disk_max_bytes",
        value: Some("SIZE|none"),
        default: "none",
        help: "Maximum size of the data folder, including the reserve. none: limited by the disk only",
        set: |settings, text| values::into(&mut settings.disk_max_bytes, values::or_none(text, values::size)),
    },
    Setting {
        name: "free_bytes_min",
        value: Some("SIZE"),
        default: "128MiB",
        help: "Publishing is refused while less than this is free on the disk, until twice as much is free",
        set: |settings, text| values::into(&mut settings.free_bytes_min, values::size(text)),
    },
    Setting {
        name: "reserve_bytes",
        value: Some("SIZE"),
        default: "256MiB",
        help: "Space set aside so that settling continues when the disk is full. At least four segments",
        set: |settings, text| values::into(&mut settings.reserve_bytes, values::size(text)),
    },
    Setting {
        name: "segment_bytes",
        value: Some("SIZE"),
        default: "64MiB",
        help: "Size of a segment file of the log. Set when the data folder is created; cannot be changed \
               later",
        set: |settings, text| values::into(&mut settings.segment_bytes, values::segment_size(text)),
    },
];
