//! Manifests of backups.
#![no_main]

esker_fuzz::target!("backup", esker_format::fuzzing::backup);
