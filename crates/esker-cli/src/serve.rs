//! `esker serve`: from the configuration to a server.

use crate::arguments::ServeArguments;
use crate::config::Config;
use crate::failure::{Done, Failure};
use crate::output::output_failed;
use crate::service::{AskedOfNew, Secrets, Service, say};
use crate::store::{fits, options_at, raw_device};
use esker_server::ServerConfig;
use std::io::Write;

/// `esker serve`.
pub(crate) fn serve(arguments: &ServeArguments) -> Result<Done, Failure> {
    if arguments.print_defaults {
        let printed = write!(std::io::stdout(), "{}", Config::print_defaults());
        return printed.map(|()| Done::Yes).map_err(output_failed);
    }
    let config = Config::of(arguments)?;
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in Config::unknown_variables(variables) {
        say(&format!("warning: {name} is no option of esker serve and is ignored"));
    }
    let key = config.tls_key.as_ref().or(config.tls_cert.as_ref());
    let secrets =
        Secrets::read(config.auth_file.clone(), config.tls_cert.clone().zip(key.cloned()))?;
    if config.asked.contains_key("size") {
        fits(&config.data, config.size_bytes)?;
    }
    let mut store = options_at(&config.data);
    store.engine = config.engine;
    store.pmem_emulate = config.pmem_emulate;
    store.batching = config.batching;
    store.batching_group = config.batching_group;
    store.size_bytes = config.size_bytes;
    if arguments.format {
        raw_device(&config.data)?;
        store.format_foreign = true;
    }
    store.cache = config.cache;
    store.record_cache_bytes = config.record_cache_bytes;
    store.flex = config.flex();
    store.trim_idle = config.trim_idle;
    store.durability = config.durability;
    store.check()?;
    if arguments.check_config {
        say("the configuration is valid");
        return Ok(Done::Yes);
    }
    let server = ServerConfig {
        listen: config.listen,
        allow_remote: config.allow_remote,
        limits: config.limits,
        backups: config.backups,
        tls: secrets.tls(),
        auth: secrets.auth(),
        ..ServerConfig::default()
    };
    let service = Service {
        store,
        server,
        cores: config.cores,
        spin: config.spin,
        io: config.io,
        log: "info",
        secrets,
        asked: AskedOfNew {
            size: config.asked.get("size").cloned(),
            no_cache: config.asked.get("cache").filter(|_| !config.cache).cloned(),
        },
    };
    service.run(|_| Ok(()), || Ok(()))
}
