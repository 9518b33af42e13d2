//! Plans unfold as they should, and tiny ones run.

use super::*;
use crate::runner;
use std::collections::BTreeSet;

fn tiny(workloads: &[&str], systems: &[&str]) -> Plan {
    let owned = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    Plan {
        workload: owned(workloads),
        systems: owned(systems),
        records: Some(500),
        seconds: Some(0.05),
        warmup: Some(0.02),
        repetitions: Some(1),
        ..Plan::default()
    }
    .over(Plan::defaults())
}

fn run_here(plan: &Plan) -> Document {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { data: Some(folder.path().to_owned()), ..plan.clone() };
    let registry = Registry::new();
    let launch = |cell: &Cell, tell: &mut dyn FnMut(Event)| runner::run(cell, &registry, tell);
    run(&plan, &registry, "test", launch, |_, _, _| ()).unwrap()
}

fn check_all_have_figures(document: &Document) {
    assert!(!document.rows.is_empty());
    for row in &document.rows {
        assert_eq!(row.skipped, None, "{} {}", row.system, row.workload);
        assert!(row.ops > 0, "{} {} {}", row.system, row.workload, row.phase);
    }
}

#[test]
fn systems_change_first_and_repetitions_last() {
    let plan = Plan {
        repetitions: Some(2),
        threads: Some(vec![1, 2]),
        ..tiny(&["ycsb-a", "fillseq", "ycsb-e", "ycsb-c"], &["depot", "hashmap"])
    };
    let cells = plan.cells(Path::new("x")).unwrap();
    let order: Vec<(u32, usize, &str, Vec<&str>)> = cells
        .iter()
        .map(|cell| {
            let names = cell.workloads.iter().map(|workload| workload.name.as_str()).collect();
            (cell.repetition, cell.settings.threads, cell.system.as_str(), names)
        })
        .collect();
    let ycsb = vec!["ycsb-a", "ycsb-c", "ycsb-e"];
    let mut expected = Vec::new();
    for repetition in [0, 1] {
        for threads in [1, 2] {
            for family in [ycsb.clone(), vec!["fillseq"]] {
                for system in ["depot", "hashmap"] {
                    expected.push((repetition, threads, system, family.clone()));
                }
            }
        }
    }
    assert_eq!(order, expected);
}

#[test]
fn every_named_workload_runs_on_an_ordered_system() {
    let names: Vec<String> = catalogue::all().into_iter().map(|workload| workload.name).collect();
    let names: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| *name != "recovery").collect();
    assert!(names.len() > 30);
    // By number: a busy machine may give a client no turn in a twentieth of a second.
    let plan = Plan { operations: Some(200), ..tiny(&names, &["btreemap"]) };
    let document = run_here(&plan);
    check_all_have_figures(&document);
    let ran: BTreeSet<&str> = document.rows.iter().map(|row| row.workload.as_str()).collect();
    assert!(names.iter().all(|name| ran.contains(name)));
}

#[test]
fn depot_runs_and_counts() {
    let plan = Plan {
        seconds: Some(0.2),
        durability: Some(vec![Durability::Sync, Durability::None]),
        ..tiny(&["fillrandom", "ycsb-a", "ycsb-d", "ycsb-f", "readmissing", "etc-50"], &["depot"])
    };
    let document = run_here(&plan);
    check_all_have_figures(&document);
    let row =
        document.rows.iter().find(|row| row.workload == "ycsb-a" && row.phase == "run").unwrap();
    assert!(row.user_bytes > 0 && row.user_read_bytes > 0 && row.rss_bytes > 0);
    assert!(row.p50_us > 0.0 && row.p50_us <= row.p99_us && row.p99_us <= row.p999_us);
    assert!(
        row.counters["device_flushes_total"] > 0.0 || row.counters["device_writes_total"] > 0.0
    );
    assert!(row.counters["index_bytes"] > 0.0);
    assert_eq!(row.operations.keys().collect::<Vec<_>>(), ["read", "update"]);
    assert_eq!(row.operations.values().map(|figures| figures.ops).sum::<u64>(), row.ops);
    assert!(row.settle_seconds >= 0.0);
}

#[test]
fn figures_of_persistent_memory_are_those_of_engines_that_have_it() {
    let plan = Plan {
        operations: Some(200),
        durability: Some(vec![Durability::Sync]),
        ..tiny(&["flatstore-put"], &["flat:cceh", "depot"])
    };
    let document = run_here(&plan);
    check_all_have_figures(&document);
    for row in document.rows.iter().filter(|row| row.phase == "run") {
        let figures = [row.pm_flushes_per_op, row.pm_fences_per_op, row.pm_blocks_per_op];
        let is_right = |figure: &Option<f64>| match row.system.as_str() {
            "depot" => figure.is_none(),
            _ => figure.is_some_and(|figure| figure > 0.0),
        };
        assert!(figures.iter().all(is_right), "{}: {figures:?}", row.system);
    }
}

#[test]
fn tasks_are_clients_too() {
    let plan = Plan {
        depth: Some(vec![8]),
        seconds: Some(0.3),
        ..tiny(&["udepot-put", "udepot-get"], &["depot:trt-sync"])
    };
    check_all_have_figures(&run_here(&plan));
}

#[test]
fn the_index_alone_runs() {
    check_all_have_figures(&run_here(&tiny(&["ycsb-a", "readmissing"], &["index"])));
}

#[test]
fn what_a_system_cannot_do_is_said() {
    let document = run_here(&Plan { ..tiny(&["ycsb-c", "ycsb-e"], &["depot"]) });
    let skipped: Vec<(&str, Option<&str>)> = document
        .rows
        .iter()
        .filter(|row| row.phase == "run")
        .map(|row| (row.workload.as_str(), row.skipped.as_deref()))
        .collect();
    assert_eq!(skipped, [("ycsb-e", Some("keeps no order")), ("ycsb-c", None)]);
    let full = Plan { utilization: Some(vec![50.0]), ..tiny(&["pacman"], &["hashmap"]) };
    assert_eq!(run_here(&full).rows[0].skipped.as_deref(), Some("has no fixed capacity"));
    let mut modest = Registry::new().find("hashmap").unwrap().0.clone();
    (modest.name, modest.promises) = ("modest", &[Durability::None]);
    let registry = Registry::new().with(vec![modest]);
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { data: Some(folder.path().to_owned()), ..tiny(&["ycsb-c"], &["modest"]) };
    let launch = |cell: &Cell, tell: &mut dyn FnMut(Event)| runner::run(cell, &registry, tell);
    let document = run(&plan, &registry, "test", launch, |_, _, _| ()).unwrap();
    assert_eq!(document.rows[0].skipped.as_deref(), Some("does not promise this durability"));
}

#[test]
fn utilization_is_what_was_asked_for() {
    let plan = Plan {
        // Of a small store, the segments that are kept free are a large part.
        utilization: Some(vec![60.0]),
        records: Some(400_000),
        value_size: Some(vec![48]),
        durability: Some(vec![Durability::None]),
        ..tiny(&["pacman"], &["depot"])
    };
    let document = run_here(&plan);
    let row = document.rows.iter().find(|row| row.phase == "run").unwrap();
    assert_eq!(row.skipped, None);
    let reached = row.counters["utilization"];
    assert!((0.56..0.64).contains(&reached), "{reached}");
}

#[test]
fn an_open_loop_keeps_its_rate_and_counts_waiting() {
    let plan =
        Plan { rate: Some(vec![2000.0]), seconds: Some(0.5), ..tiny(&["ycsb-c"], &["hashmap"]) };
    let is_kept = || {
        let document = run_here(&plan);
        let row = document.rows.iter().find(|row| row.phase == "run").unwrap();
        (1500.0..2100.0).contains(&row.ops_per_second)
    };
    // A busy machine may stand still.
    assert!((0..5).any(|_| is_kept()));
}

#[test]
fn operations_end_a_phase() {
    let plan = Plan { operations: Some(1001), ..tiny(&["ycsb-c"], &["hashmap"]) };
    let document = run_here(&plan);
    assert_eq!(document.rows.iter().find(|row| row.phase == "run").unwrap().ops, 1001);
}

#[test]
fn a_trace_is_played() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let mut text = "time,op,key,value_size\n".to_owned();
    for n in 0..300 {
        text += &format!("{}.5,{},key{},40\n", n, ["set", "get", "delete"][n % 3], n / 3);
    }
    files::write(&path, &text).unwrap();
    let document = run_here(&tiny(&[&format!("trace:{}", path.display())], &["depot", "hashmap"]));
    check_all_have_figures(&document);
    assert!(document.rows.iter().all(|row| row.ops == 300 && row.operations["delete"].ops == 100));
}

#[test]
fn reads_of_a_trace_are_checked_for_what_it_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let mut liar = Registry::new().find("hashmap").unwrap().0.clone();
    liar.name = "liar";
    liar.open = |_| Ok(Box::new(Liar));
    let registry = Registry::new().with(vec![liar]);
    let launch = |cell: &Cell, tell: &mut dyn FnMut(Event)| runner::run(cell, &registry, tell);
    // Whoever never wrote the key does not know what it has. The liar has nine bytes.
    for (text, is_right) in [
        ("op,key,value_size\nget,a,3\nset,b,9\nget,b,3\n", true),
        ("op,key,value_size\nset,a,8\nget,a,8\n", false),
        ("op,key,value_size\nset,a,8\nincr,a,9\n", false),
    ] {
        files::write(&path, text).unwrap();
        let workload = format!("trace:{}", path.display());
        let data = Some(folder.path().join("data"));
        let plan = Plan { data, ..tiny(&[&workload], &["liar"]) };
        let document = run(&plan, &registry, "test", launch, |_, _, _| ()).unwrap();
        let said = document.rows[0].skipped.as_deref().unwrap_or_default();
        assert_eq!(!said.contains("wrong answer"), is_right, "{text}: {said}");
    }
}

/// What `flat` promises on a file follows from where the file lies.
#[test]
fn flat_says_where_nothing_is_durable() {
    let places = [tempfile::tempdir().ok(), tempfile::tempdir_in("/dev/shm").ok()];
    for folder in places.into_iter().flatten() {
        let in_memory = Machine::examine(folder.path()).file_system.starts_with("tmpfs");
        let plan = Plan {
            data: Some(folder.path().to_owned()),
            operations: Some(20),
            ..tiny(&["ycsb-a"], &["flat:cceh"])
        };
        let registry = Registry::new();
        let launch = |cell: &Cell, tell: &mut dyn FnMut(Event)| runner::run(cell, &registry, tell);
        let document = run(&plan, &registry, "test", launch, |_, _, _| ()).unwrap();
        check_all_have_figures(&document);
        let row = document.rows.iter().find(|row| row.phase == "run").unwrap();
        let said = &row.options["durability"];
        assert_eq!(said.starts_with("none"), in_memory, "{said}: {}", row.options["medium"]);
    }
}

#[test]
fn a_system_that_answers_wrong_fails_its_cell() {
    let mut registry = Registry::new();
    let mut liar = registry.find("hashmap").unwrap().0.clone();
    liar.name = "liar";
    // Keeps nothing of what it is given.
    liar.open = |_| Ok(Box::new(Liar));
    registry = registry.with(vec![liar]);
    let folder = tempfile::tempdir().unwrap();
    let plan =
        Plan { data: Some(folder.path().to_owned()), ..tiny(&["ycsb-c"], &["liar", "hashmap"]) };
    let launch = |cell: &Cell, tell: &mut dyn FnMut(Event)| runner::run(cell, &registry, tell);
    let document = run(&plan, &registry, "test", launch, |_, _, _| ()).unwrap();
    let failed: Vec<&Row> = document.rows.iter().filter(|row| row.skipped.is_some()).collect();
    assert_eq!(failed.len(), 1);
    let words = failed[0].skipped.as_deref().unwrap();
    assert!(words.starts_with(FAILED) && words.contains("wrong answer"), "{words}");
    assert!(document.rows.iter().any(|row| row.system == "hashmap" && row.ops > 0));
}

struct Liar;

impl crate::system::System for Liar {
    fn session(&self) -> Outcome<Box<dyn crate::system::Session>> {
        Ok(Box::new(Liar))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }

    fn options(&self) -> std::collections::BTreeMap<String, String> {
        Default::default()
    }
}

impl crate::system::Session for Liar {
    fn read(&mut self, _: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        see(b"something");
        Ok(true)
    }

    fn write(&mut self, _: &[u8], _: &[u8]) -> Outcome<()> {
        Ok(())
    }

    fn delete(&mut self, _: &[u8]) -> Outcome<()> {
        Ok(())
    }

    fn scan(&mut self, _: &[u8], _: u64, _: &mut dyn FnMut(&[u8], &[u8])) -> Outcome<u64> {
        Ok(0)
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A map whose scans go another way.
struct Astray<T> {
    map: T,
    way: fn(&mut Pairs),
}

fn astray(
    options: &crate::system::OpenOptions,
    way: fn(&mut Pairs),
) -> Outcome<Box<dyn crate::system::System>> {
    let map = (Registry::new().find("btreemap")?.0.open)(options)?;
    Ok(Box::new(Astray { map, way }))
}

impl crate::system::System for Astray<Box<dyn crate::system::System>> {
    fn session(&self) -> Outcome<Box<dyn crate::system::Session>> {
        Ok(Box::new(Astray { map: self.map.session()?, way: self.way }))
    }

    fn sync(&self) -> Outcome<()> {
        self.map.sync()
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        self.map.close()
    }

    fn options(&self) -> std::collections::BTreeMap<String, String> {
        self.map.options()
    }
}

impl crate::system::Session for Astray<Box<dyn crate::system::Session>> {
    fn read(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        self.map.read(key, see)
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.map.write(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Outcome<()> {
        self.map.delete(key)
    }

    fn scan(
        &mut self,
        start: &[u8],
        count: u64,
        see: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Outcome<u64> {
        let mut pairs = Pairs::new();
        self.map.scan(start, count, &mut |key, value| pairs.push((key.into(), value.into())))?;
        (self.way)(&mut pairs);
        pairs.iter().for_each(|(key, value)| see(key, value));
        Ok(pairs.len() as u64)
    }
}

#[test]
fn a_system_that_scans_wrong_fails_its_cell() {
    let mut kind = Registry::new().find("btreemap").unwrap().0.clone();
    let mut kinds = Vec::new();
    let mut add = |name, open| {
        (kind.name, kind.open) = (name, open);
        kinds.push(kind.clone());
    };
    add("right", |options| astray(options, |_| ()));
    add("one", |options| astray(options, |pairs| pairs.truncate(1)));
    add("last missing", |options| {
        // Of a scan of one record, the record is there.
        astray(options, |pairs| pairs.truncate(pairs.len().max(2) - 1))
    });
    add("descending", |options| {
        astray(options, |pairs| pairs.get_mut(1..).unwrap_or_default().reverse())
    });
    add("twice", |options| astray(options, |pairs| pairs.extend(pairs.last().cloned())));
    add("another value", |options| {
        astray(options, |pairs| pairs.iter_mut().for_each(|(_, value)| value.fill(7)))
    });
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    let registry = Registry::new().with(kinds.clone());
    let launch = |cell: &Cell, tell: &mut dyn FnMut(Event)| runner::run(cell, &registry, tell);
    // Keys in the order of their numbers and in another one, and some that are inserted meanwhile.
    for workload in ["scan50", "ycsb-e"] {
        let folder = tempfile::tempdir().unwrap();
        let data = Some(folder.path().to_owned());
        let plan = Plan { data, operations: Some(1000), ..tiny(&[workload], &names) };
        let document = run(&plan, &registry, "test", launch, |_, _, _| ()).unwrap();
        for name in &names {
            let of = |row: &&Row| row.system == *name && row.phase == "run";
            let said = document.rows.iter().find(of).unwrap().skipped.as_deref();
            let is_told = said.is_some_and(|said| said.contains("wrong answer"));
            assert_eq!(is_told, *name != "right", "{workload}, {name}: {said:?}");
        }
    }
}

#[test]
fn systems_that_are_not_in_this_build_are_refused_by_name() {
    for name in ["flat:btree", "matrix", "depot:spdk"] {
        let plan = Plan { data: Some(PathBuf::from("/nonexistent")), ..tiny(&["ycsb-a"], &[name]) };
        let launch = |_: &Cell, _: &mut dyn FnMut(Event)| Ok(());
        let failure = run(&plan, &Registry::new(), "test", launch, |_, _, _| ()).unwrap_err();
        assert!(failure.to_string().contains("not in this build"), "{failure}");
    }
}

#[test]
fn distributions_are_read() {
    assert_eq!(parse_distribution("zipfian:0.5").unwrap(), Distribution::Zipfian { theta: 0.5 });
    assert!(parse_distribution("zipfian:1.5").is_err());
    assert!(parse_distribution("normal").is_err());
}

/// Each experiment's file is read, and unfolds.
#[test]
fn the_configurations_of_the_project_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/configs");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let plan = Plan::read(&path).unwrap().over(Plan::defaults());
        assert!(plan.title.is_some() && plan.about.is_some(), "{}", path.display());
        assert!(!plan.cells(Path::new("x")).unwrap().is_empty(), "{}", path.display());
        count += 1;
    }
    assert!(count >= 10, "{count}");
}
