//! Tests of the configuration: defaults, layers, and where errors point.

use super::*;

fn read(text: &str) -> Result<Config, String> {
    let mut config = Config::defaults().map_err(|failure| failure.to_string())?;
    config.read(text, "esker.toml").map_err(|failure| failure.to_string())?;
    Ok(config)
}

#[test]
fn defaults_are_those_of_the_server() {
    let config = Config::defaults().expect("the table is valid");
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.listen, [ListenAddress::default()]);
    assert_eq!((config.size_bytes, config.durability), (8 << 30, Durability::Sync));
    assert_eq!(config.io, [], "as the store says");
    assert_eq!(config.data, [PathBuf::from(DEFAULT_DATA)]);
}

#[test]
fn the_command_line_goes_before_the_file() {
    let folder = tempfile::tempdir().expect("scratch folder");
    let path = folder.path().join("esker.toml");
    std::fs::write(&path, "size = \"1GiB\"\ncores = 3\nlisten = \"memcache://127.0.0.1:1\"\n")
        .expect("write");
    let arguments = ServeArguments {
        config: Some(path),
        size: Some("2GiB".into()),
        io: Some("sync,aio".into()),
        ..ServeArguments::default()
    };
    let config = Config::of(&arguments).expect("valid");
    assert_eq!((config.size_bytes, config.cores), (2 << 30, 3));
    assert_eq!(config.listen[0].to_string(), "memcache://127.0.0.1:1");
    assert_eq!(config.io, [Facility::Sync, Facility::Aio]);
}

#[test]
fn data_may_lie_in_several_places() {
    let config = read("data = [\"/one\", \"/two\"]\n").expect("valid");
    assert_eq!(config.data, [PathBuf::from("/one"), PathBuf::from("/two")]);
    let arguments =
        ServeArguments { data: vec!["a".into(), "b".into()], ..ServeArguments::default() };
    let config = Config::of(&arguments).expect("valid");
    assert_eq!(config.data, [PathBuf::from("a"), PathBuf::from("b")]);
}

#[test]
fn backups_lie_elsewhere_than_data_whatever_they_are_called() {
    let scratch = tempfile::tempdir().expect("scratch folder");
    let at = |name: &str| scratch.path().join(name).display().to_string();
    std::fs::create_dir_all(at("data/within")).expect("folder");
    std::fs::create_dir(at("elsewhere")).expect("folder");
    std::os::unix::fs::symlink(at("data/within"), at("link")).expect("link");
    std::os::unix::fs::symlink(at("elsewhere"), at("data/out")).expect("link");
    let of = |data: &str, backups: &str| {
        Config::of(&ServeArguments {
            data: vec![at("other"), at(data)],
            backups: Some(at(backups)),
            ..ServeArguments::default()
        })
    };
    for (data, backups) in [
        ("data", "data"),
        ("data", "data/within/new/folder"),
        ("data", "elsewhere/../data/new"),
        ("data", "new/../data/./new"),
        ("data", "link"),
        ("data", "link/../new"),
        ("new", "new/backups"),
        ("new", "other"),
        ("link", "data/within"),
    ] {
        let failure = of(data, backups).expect_err(backups).to_string();
        assert!(failure.contains("where the data are"), "{failure}");
    }
    for (data, backups) in
        [("data", "data2"), ("data", "new"), ("data", "data/out/new"), ("data/within", "data/new")]
    {
        let config = of(data, backups).expect(backups);
        assert_eq!(config.backups, Some(PathBuf::from(at(backups))));
    }
    assert_eq!(Config::defaults().expect("valid").backups, None);
    assert_eq!(read("backups = \"\"\n").expect("valid").backups, None);
}

#[test]
fn errors_say_where_and_what() {
    for (text, words) in [
        ("cores = 1\nbogus = 2\n", "esker.toml:2: bogus: no such option"),
        (
            "\n\nsize = \"8 apples\"\n",
            "esker.toml:3: size: \"8 apples\" is no size, such as 512MiB or 8GiB",
        ),
        ("cores = [\n", "esker.toml:"),
        (
            "durability = \"sometimes\"",
            "esker.toml:1: durability: \"sometimes\" is none of sync, periodic, periodic:500ms, none",
        ),
        (
            "engine = \"matrix\"",
            "esker.toml:1: engine: engine \"matrix\" is not in this version; depot, flat and flex are",
        ),
        (
            "durability = \"periodic:0\"",
            "esker.toml:1: durability: the window of periodic must be longer than zero",
        ),
        (
            "batching = \"horizontal\"",
            "esker.toml:1: batching: \"horizontal\" is none of none, vertical, naive-horizontal, pipelined-horizontal",
        ),
        ("batching-group = \"many\"", "esker.toml:1: batching-group: \"many\" is no count"),
        ("spin = \"2s\"", "esker.toml:1: spin: 2s is more than a second"),
        ("flex-memtable = 64", "esker.toml:1: flex-memtable: 64 is less than 64KiB"),
        (
            "flex-cache = \"much\"",
            "esker.toml:1: flex-cache: \"much\" is no size, such as 512MiB or 8GiB",
        ),
        ("data = { a = 1 }", "esker.toml:1: data: a table has no meaning here"),
        ("size = [1, 2]", "esker.toml:1: size: takes one value"),
    ] {
        let error = read(text).expect_err(text);
        assert!(error.starts_with(words), "{error}");
    }
}

#[test]
fn times_and_durabilities_are_read_as_people_write_them() {
    let config =
        read("durability = \"periodic:500ms\"\nidle-timeout = 5\nrequest-timeout = \"2m\"\nspin = \"50us\"")
            .expect("valid");
    assert_eq!(config.durability, Durability::Periodic(Duration::from_millis(500)));
    assert_eq!(config.limits.idle_timeout, Duration::from_secs(5));
    assert_eq!(config.limits.request_timeout, Duration::from_secs(120));
    assert_eq!(config.spin, Duration::from_micros(50));
}

#[test]
fn the_batching_of_flat_is_chosen_by_its_name() {
    assert_eq!(Config::defaults().expect("valid").batching, esker::Options::new("").batching);
    for model in esker::Batching::ALL {
        let config = read(&format!("batching = \"{model}\"\nbatching-group = 4")).expect("valid");
        assert_eq!((config.batching, config.batching_group), (model, 4));
    }
}

#[test]
fn the_memory_of_flex_is_what_it_was_told() {
    // The figures of the table are the library's.
    let (told, own) = (Config::defaults().expect("valid").flex(), FlexOptions::default());
    assert_eq!(format!("{told:?}"), format!("{own:?}"));
    let config = read("flex-cache = \"2GiB\"\nflex-memtable = \"128MiB\"\nflex-scrub = 0\n");
    let flex = config.expect("valid").flex();
    assert_eq!((flex.cache_size_bytes, flex.memtable_size_bytes), (2 << 30, 128 << 20));
    assert_eq!(flex.scrub_bytes_per_second, 0);
    let of = |cache: &str, memtable: &str| {
        Config::of(&ServeArguments {
            flex_cache: Some(cache.into()),
            flex_memtable: Some(memtable.into()),
            ..ServeArguments::default()
        })
    };
    assert!(of("0", "64KiB").is_ok() && of("16TiB", "16TiB").is_ok());
    for (cache, memtable, what) in [("17TiB", "1MiB", "cache"), ("1MiB", "17TiB", "memtable")] {
        let failure = of(cache, memtable).expect_err(what).to_string();
        let words = format!("the {what} of flex has at most 16 TiB, not 17 TiB");
        assert!(failure.contains(&words), "{failure}");
    }
}

#[test]
fn an_address_that_others_reach_needs_permission() {
    let open =
        ServeArguments { listen: vec!["memcache://0.0.0.0:0".into()], ..ServeArguments::default() };
    let failure = Config::of(&open).expect_err("refused").to_string();
    assert!(failure.contains("--allow-remote"), "{failure}");
    assert!(Config::of(&ServeArguments { allow_remote: Some("true".into()), ..open }).is_ok());
}

#[test]
fn every_option_of_the_command_line_is_in_the_table() {
    let some = || Some(String::new());
    let all = ServeArguments {
        listen: vec![String::new()],
        allow_remote: some(),
        tls_cert: some(),
        tls_key: some(),
        auth_file: some(),
        data: vec![String::new()],
        backups: some(),
        engine: some(),
        pmem_emulate: some(),
        batching: some(),
        batching_group: some(),
        size: some(),
        cache: some(),
        record_cache: some(),
        flex_cache: some(),
        flex_memtable: some(),
        flex_scrub: some(),
        trim_idle: some(),
        durability: some(),
        cores: some(),
        spin: some(),
        io: some(),
        connections_max: some(),
        item_size_max: some(),
        memory_max: some(),
        idle_timeout: some(),
        request_timeout: some(),
        ..ServeArguments::default()
    };
    let names: Vec<&str> = all.given().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, SETTINGS.iter().map(|setting| setting.name).collect::<Vec<_>>());
}
