//! The generators draw what their sources say: chi-square of counts against the published formulae, worked out here
//! a second time from the papers' text.

use super::distribution::*;
use super::shape::*;
use super::space::KeySpace;
use super::stream::*;
use super::trace::Trace;
use super::*;
use crate::numbers::{real, size};
use esker_base::rng::Rng;
use statrs::distribution::{ChiSquared, ContinuousCDF};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Chance that draws of these probabilities are at least as far off as the counts are. Cells that expect fewer
/// than ten are put together.
fn chance(counts: &[u64], probabilities: &[f64]) -> f64 {
    assert_eq!(counts.len(), probabilities.len());
    let all = real(counts.iter().sum());
    let sum: f64 = probabilities.iter().sum();
    assert!((sum - 1.0).abs() < 1e-6, "probabilities sum up to {sum}");
    let (mut statistic, mut cells, mut seen, mut expected) = (0.0, 0.0, 0.0, 0.0);
    for (count, probability) in counts.iter().zip(probabilities) {
        seen += real(*count);
        expected += probability * all;
        if expected >= 10.0 {
            statistic += (seen - expected).powi(2) / expected;
            cells += 1.0;
            (seen, expected) = (0.0, 0.0);
        }
    }
    assert!(cells > 5.0, "{cells} cells prove nothing");
    1.0 - ChiSquared::new(cells - 1.0).unwrap().cdf(statistic)
}

/// By chance one of a thousand right generators fails; seeds are fixed, so that it is always the same answer.
fn check_fits(name: &str, counts: &[u64], probabilities: &[f64]) {
    let chance = chance(counts, probabilities);
    assert!(chance > 0.001, "{name}: chance {chance}");
}

fn draws(distribution: Distribution, keys: u64, count: u64, seed: u64) -> Vec<u64> {
    let mut chooser = Chooser::new(distribution, keys, 0, 0, 1);
    let mut rng = Rng::from_seed(seed);
    let mut counts = vec![0; size(keys)];
    for _ in 0..count {
        counts[size(chooser.draw(keys, &mut rng))] += 1;
    }
    counts
}

/// Gray et al., "Quickly generating billion-record synthetic databases", and YCSB's ZipfianGenerator: the
/// probability of each of the first `ranks` of `items` ranks, from where their formula steps.
fn gray(items: u64, ranks: u64, theta: f64) -> Vec<f64> {
    let n = real(items);
    let zeta_n: f64 = if items <= 1_000_000 {
        (1..=items).map(|k| 1.0 / real(k).powf(theta)).sum()
    } else {
        zeta(items, theta)
    };
    let zeta_2 = 1.0 + 0.5_f64.powf(theta);
    let eta = (1.0 - (2.0 / n).powf(1.0 - theta)) / (1.0 - zeta_2 / zeta_n);
    // Where n * (eta*u - eta + 1)^(1/(1-theta)) reaches k.
    let reaches = |k: f64| ((k / n).powf(1.0 - theta) - 1.0 + eta) / eta;
    (0..ranks)
        .map(|rank| match rank {
            0 => 1.0 / zeta_n,
            1 => 0.5_f64.powf(theta) / zeta_n,
            _ => reaches(real(rank + 1)).min(1.0) - reaches(real(rank)),
        })
        .collect()
}

#[test]
fn the_sum_of_weights_is_that_of_ycsb() {
    // ScrambledZipfianGenerator.ZETAN, which YCSB added up once for ten billion items.
    assert!((zeta(SCRAMBLED_ITEMS, THETA) - 26.469_028_201_783_02).abs() < 1e-6);
    for count in [1, 2, 10_000, 10_001, 123_456] {
        let exact: f64 = (1..=count).map(|k| real(k).powf(-0.7)).sum();
        assert!((zeta(count, 0.7) - exact).abs() < 1e-9 * exact, "{count}");
    }
}

#[test]
fn growing_gives_the_generator_of_the_larger_space() {
    let mut grown = Zipfian::new(3, THETA);
    for items in [4, 500, 9_999, 10_001, 50_000] {
        grown.grow(items);
        let new = Zipfian::new(items, THETA);
        assert!((grown.zeta_items() - new.zeta_items()).abs() < 1e-9);
        for uniform in [0.0, 0.1, 0.5, 0.9, 0.999_999] {
            assert_eq!(grown.rank(uniform), new.rank(uniform), "{items} {uniform}");
        }
    }
}

#[test]
fn zipfian_ranks_follow_the_formula_of_gray() {
    for (items, theta) in [(1000, THETA), (100_000, THETA), (1000, 0.5)] {
        let counts = draws(Distribution::Clustered { theta }, items, 2_000_000, 7);
        check_fits("zipfian", &counts, &gray(items, items, theta));
    }
}

/// The formula is an approximation of Zipf's law itself: exact at the two most popular ranks, and within a few
/// per cent further down.
#[test]
fn the_formula_of_gray_is_near_zipf() {
    let (items, theta) = (100_000, THETA);
    let formula = gray(items, items, theta);
    let zeta = zeta(items, theta);
    for rank in [0_u64, 1, 10, 100, 10_000] {
        let exact = real(rank + 1).powf(-theta) / zeta;
        let off = formula[size(rank)] / exact - 1.0;
        let limit = if rank < 2 { 1e-12 } else { 0.12 };
        assert!(off.abs() < limit, "rank {rank}: {off}");
    }
}

#[test]
fn other_skews_do_not_pass_for_this_one() {
    let counts = draws(Distribution::Clustered { theta: 0.98 }, 1000, 2_000_000, 7);
    assert!(chance(&counts, &gray(1000, 1000, THETA)) < 1e-9);
}

/// ScrambledZipfianGenerator: FNV of a rank of ten billion, modulo the keys. Ranks from a million on are so many
/// and so rare that they spread evenly.
#[test]
fn scattered_keys_follow_the_hashed_ranks() {
    const HEAD: u64 = 1_000_000;
    for keys in [100, 1000, 10_000] {
        let mut probabilities = vec![0.0; size(keys)];
        let head = gray(SCRAMBLED_ITEMS, HEAD, THETA);
        for (rank, probability) in head.iter().enumerate() {
            probabilities[size(fnv(rank as u64) % keys)] += probability;
        }
        let rest = 1.0 - head.iter().sum::<f64>();
        for probability in &mut probabilities {
            *probability += rest / real(keys);
        }
        let counts = draws(Distribution::Zipfian { theta: THETA }, keys, 2_000_000, 11);
        check_fits("scrambled zipfian", &counts, &probabilities);
    }
}

/// FNV-1a as its authors write it, over the bytes of a number, low byte first; Java's `Math.abs`.
fn fnv(number: u64) -> u64 {
    let mut hash = 14_695_981_039_346_656_037_u64;
    for byte in number.to_le_bytes() {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    hash.cast_signed().unsigned_abs()
}

#[test]
fn numbers_are_scattered_as_by_ycsb() {
    for number in [0, 1, 255, 256, u64::from(u32::MAX), 1 << 40] {
        assert_eq!(scatter(number), fnv(number));
    }
    // `user` keys that YCSB 0.17 loads first.
    let mut key = Vec::new();
    KeyShape::Ycsb.write(0, &mut key);
    assert_eq!(key, b"user6284781860667377211");
    KeyShape::Ycsb.write(1, &mut key);
    assert_eq!(key, b"user8517097267634966620");
}

/// SkewedLatestGenerator: the newest key less a zipfian rank.
#[test]
fn the_latest_keys_are_the_most_popular() {
    let keys = 5000;
    let counts = draws(Distribution::Latest { theta: THETA }, keys, 1_000_000, 13);
    let mut probabilities = gray(keys, keys, THETA);
    probabilities.reverse();
    check_fits("latest", &counts, &probabilities);
}

#[test]
fn latest_follows_a_space_that_grows() {
    let mut chooser = Chooser::new(Distribution::Latest { theta: THETA }, 10, 0, 0, 1);
    let mut rng = Rng::from_seed(1);
    for count in [10, 100, 5000] {
        let newest = (0..2000).filter(|_| chooser.draw(count, &mut rng) == count - 1).count();
        let expected = 2000.0 / zeta(count, THETA);
        assert!((real(newest as u64) / expected - 1.0).abs() < 0.25, "{count}: {newest}");
    }
}

#[test]
fn the_other_distributions_fit() {
    let keys = 2000;
    let even = vec![1.0 / real(keys); size(keys)];
    check_fits("uniform", &draws(Distribution::Uniform, keys, 500_000, 17), &even);

    let hotspot = Distribution::Hotspot { keys: 0.2, requests: 0.8 };
    let probabilities: Vec<f64> =
        (0..keys).map(|key| if key < 400 { 0.8 / 400.0 } else { 0.2 / 1600.0 }).collect();
    check_fits("hotspot", &draws(hotspot, keys, 500_000, 19), &probabilities);

    // ExponentialGenerator: 95 % of the draws among 0.857 of the keys; those beyond all keys are drawn again.
    let share = 0.857_142_857_1;
    let exponential = Distribution::Exponential { percentile: 95.0, keys: share };
    let gamma = -(0.05_f64.ln()) / (real(keys) * share);
    let below = |key: u64| 1.0 - (-gamma * real(key)).exp();
    let probabilities: Vec<f64> =
        (0..keys).map(|key| (below(key + 1) - below(key)) / below(keys)).collect();
    check_fits("exponential", &draws(exponential, keys, 500_000, 23), &probabilities);

    // Three digits of prefix by zipfian, the rest uniform.
    let keys = 10_000;
    let prefixes = gray(1000, 1000, THETA);
    let probabilities: Vec<f64> = (0..keys).map(|key| prefixes[size(key / 10)] / 10.0).collect();
    let composite = Distribution::Composite { theta: THETA };
    check_fits("composite", &draws(composite, keys, 1_000_000, 29), &probabilities);
}

#[test]
fn sequential_clients_go_round_from_places_of_their_own() {
    let mut rng = Rng::from_seed(1);
    let mut second = Chooser::new(Distribution::Sequential, 10, 0, 1, 2);
    let keys: Vec<u64> = (0..7).map(|_| second.draw(10, &mut rng)).collect();
    assert_eq!(keys, [5, 6, 7, 8, 9, 0, 1]);
}

#[test]
fn mixes_are_those_of_the_workloads() {
    let expected: [(&str, &[(Operation, f64)]); 6] = [
        ("ycsb-a", &[(Operation::Read, 0.5), (Operation::Update, 0.5)]),
        ("ycsb-b", &[(Operation::Read, 0.95), (Operation::Update, 0.05)]),
        ("ycsb-d", &[(Operation::Read, 0.95), (Operation::Insert, 0.05)]),
        ("ycsb-e", &[(Operation::Scan, 0.95), (Operation::Insert, 0.05)]),
        ("ycsb-f", &[(Operation::Read, 0.5), (Operation::ReadModifyWrite, 0.5)]),
        ("etc-95", &[(Operation::Read, 0.95), (Operation::Update, 0.05)]),
    ];
    for (name, mix) in expected {
        let workload = catalogue::named(name).unwrap();
        let space = Arc::new(KeySpace::new(1000));
        let all: Vec<Request> =
            Requests::new(&workload, &space, 1000, 3, 0, 1).take(100_000).collect();
        for (operation, share) in mix {
            let count = all.iter().filter(|request| request.operation == *operation).count();
            let off = real(count as u64) / 100_000.0 - share;
            assert!(off.abs() < 0.006, "{name} {operation:?}: {off}");
        }
        if name == "ycsb-e" {
            let lengths: BTreeSet<u64> = all
                .iter()
                .filter(|request| request.operation == Operation::Scan)
                .map(|request| request.length)
                .collect();
            assert_eq!(
                (lengths.len(), lengths.first(), lengths.last()),
                (100, Some(&1), Some(&100))
            );
        }
    }
}

#[test]
fn requests_come_from_their_seed() {
    let workload = catalogue::named("ycsb-a").unwrap();
    let space = Arc::new(KeySpace::new(1000));
    let some = |seed, client| -> Vec<Request> {
        Requests::new(&workload, &space, 1000, seed, client, 2).take(50).collect()
    };
    assert_eq!(some(1, 0), some(1, 0));
    assert_ne!(some(1, 0), some(2, 0));
    assert_ne!(some(1, 0), some(1, 1));
}

#[test]
fn fills_write_as_many_records_as_there_are_to_be() {
    for (order, each_once) in
        [(Order::Sequential, true), (Order::Scattered, true), (Order::Random, false)]
    {
        for records in [1, 2, 10, 1000, 4096] {
            let mut workload = catalogue::named("fillseq").unwrap();
            workload.kind = Kind::Fill(order);
            let space = Arc::new(KeySpace::new(records));
            let all: Vec<u64> = (0..3)
                .flat_map(|client| Requests::new(&workload, &space, records, 5, client, 3))
                .map(|request| request.number)
                .collect();
            assert_eq!(all.len() as u64, records);
            let distinct = all.iter().collect::<BTreeSet<_>>().len() as u64;
            assert!(all.iter().all(|number| *number < records));
            assert_eq!(distinct == records, each_once || records == 1, "{order:?} {records}");
        }
    }
}

#[test]
fn etc_sizes_have_the_shares_of_the_paper() {
    let mut counts = [0_u64; 3];
    for number in 0..100_000 {
        let bytes = ValueShape::Etc.size(number);
        let class = match bytes {
            1..=13 => 0,
            14..=300 => 1,
            301..=4096 => 2,
            _ => panic!("{bytes}"),
        };
        counts[class] += 1;
    }
    assert_eq!(counts, [40_000, 55_000, 5_000]);
    // Requests: one in twenty for a large key, evenly; the others zipfian, so that few keys have many.
    let workload = catalogue::named("etc-50").unwrap();
    let space = Arc::new(KeySpace::new(10_000));
    let mut large = vec![0_u64; 500];
    let all = 200_000;
    for request in Requests::new(&workload, &space, 10_000, 3, 0, 1).take(all) {
        if request.number % 100 >= 95 {
            large[size(request.number / 100 * 5 + request.number % 100 - 95)] += 1;
        }
    }
    let share = real(large.iter().sum()) / real(all as u64);
    assert!((share - 0.05).abs() < 0.003, "{share}");
    check_fits("large keys", &large, &[1.0 / 500.0; 500]);
}

#[test]
fn values_tell_whose_they_are() {
    let filler = Filler::new(1, 4096);
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for (number, length) in [(0, 0), (1, 1), (5, 7), (5, 8), (9, 4096)] {
        filler.write(number, length, 1, &mut one);
        filler.write(number, length, 2, &mut other);
        assert!(Filler::is_right(number, length, &one) && Filler::is_right(number, length, &other));
        assert_eq!(one == other, length <= 8);
        assert!(!Filler::is_right(number, length + 1, &one));
        assert!(length < 8 || !Filler::is_right(number + 1, length, &one));
    }
}

#[test]
fn keys_have_their_sizes_and_differ() {
    for shape in [
        KeyShape::Ycsb,
        KeyShape::Fixed(8),
        KeyShape::Fixed(13),
        KeyShape::Fixed(16),
        KeyShape::Fixed(48),
        KeyShape::Varied { min: 8, max: 32 },
    ] {
        let mut seen = BTreeSet::new();
        let mut key = Vec::new();
        for number in 0..5000 {
            shape.write(number, &mut key);
            match shape {
                KeyShape::Fixed(length) => assert_eq!(key.len(), length),
                KeyShape::Varied { min, max } => assert!((min..=max).contains(&key.len())),
                KeyShape::Ycsb => assert!(key.starts_with(b"user")),
            }
            // In the order of their numbers, where they are not scattered.
            if let (KeyShape::Fixed(_), Some(last)) = (shape, seen.last()) {
                assert!(key > *last);
            }
            assert!(seen.insert(key.clone()));
        }
    }
}

/// An ordered store would answer a key behind the last one from its end, with nothing to search.
#[test]
fn keys_that_are_missing_lie_amid_those_that_are_there() {
    let shapes = [8, 12, 15, 16, 30].map(KeyShape::Fixed);
    let more = [KeyShape::Ycsb, KeyShape::Varied { min: 8, max: 32 }];
    let records = 3000;
    for shape in shapes.into_iter().chain(more) {
        let workload = Workload { keys: shape, ..catalogue::named("readmissing").unwrap() };
        let mut key = Vec::new();
        let mut write = |number| {
            shape.write(number, &mut key);
            key.clone()
        };
        let loaded: BTreeSet<Vec<u8>> = (0..records).map(&mut write).collect();
        let (least, greatest) = (loaded.first().unwrap(), loaded.last().unwrap());
        let space = Arc::new(KeySpace::new(records));
        let (mut key, mut asked) = (Vec::new(), BTreeSet::new());
        for request in Requests::new(&workload, &space, records, 1, 0, 1).take(2000) {
            assert_eq!(request.operation, Operation::ReadMissing);
            shape.write_missing(request.number, &mut key);
            assert!(!loaded.contains(&key), "{shape:?} {}", request.number);
            // YCSB scatters its numbers: one of them, whichever, has the greatest key.
            let is_last = key.starts_with(greatest);
            assert!(least < &key && (&key < greatest || is_last), "{shape:?} {}", request.number);
            assert!(!is_last || shape == KeyShape::Ycsb, "{shape:?}");
            asked.insert(key.clone());
        }
        assert!(asked.len() > 1000, "{shape:?}: {}", asked.len());
    }
}

#[test]
fn inserts_count_when_all_before_them_are_done() {
    let space = KeySpace::new(10);
    let taken: Vec<u64> = (0..4).map(|_| space.take()).collect();
    assert_eq!(taken, [10, 11, 12, 13]);
    space.acknowledge(11);
    space.acknowledge(13);
    assert_eq!(space.count(), 10);
    space.acknowledge(10);
    assert_eq!(space.count(), 12);
    space.acknowledge(12);
    assert_eq!(space.count(), 14);
}

#[test]
fn traces_of_both_forms_are_read() {
    let named = "op, key, value_size, key size\nGET,a,10,4\nset,bb,20,1\n\nincr,c,1,1\n";
    let trace = Trace::parse(named.as_bytes(), None).unwrap();
    let keys: Vec<&[u8]> = trace.requests().iter().map(|request| trace.key(request)).collect();
    assert_eq!(keys, [&b"akkk"[..], b"bb", b"c"]);
    let operations: Vec<Operation> = trace.requests().iter().map(|one| one.operation).collect();
    use Operation::{Read, ReadModifyWrite, Update};
    assert_eq!(operations, [Read, Update, ReadModifyWrite]);
    assert_eq!(trace.value_size_max(), 20);

    let again =
        "op,key,value_size\nget,a,9\nset,a,5\nget,a,9\nincr,a,7\nget,a,9\ndelete,a,1\nget,a,9\n";
    let trace = Trace::parse(again.as_bytes(), None).unwrap();
    let expected: Vec<Option<u32>> = trace.requests().iter().map(|one| one.expected).collect();
    assert_eq!(expected, [None, None, Some(5), Some(5), Some(7), None, None]);

    let twitter = "0,key1,4,100,7,get,0\n1,key2,4,200,7,set,60\n5,key1,4,0,9,delete,0\n";
    let trace = Trace::parse(twitter.as_bytes(), Some(2)).unwrap();
    assert_eq!(trace.requests().len(), 2);
    assert_eq!(trace.requests()[1].time_micros, 1_000_000);
    assert_eq!(trace.requests()[1].value_size, 200);
}

#[test]
fn lines_without_meaning_are_refused_by_number() {
    for (text, line) in [
        ("op,key\nget,a\nfetch,a\n", "line 3"),
        ("op,key\nget,\n", "line 2"),
        ("op,key,value_size\nset,a,many\n", "line 2"),
        ("nonsense\n", "line 1"),
    ] {
        let failure = Trace::parse(text.as_bytes(), None).unwrap_err().to_string();
        assert!(failure.contains(line), "{text:?}: {failure}");
    }
}

#[test]
fn requests_on_one_key_of_a_trace_have_one_client() {
    let text: String = (0..200).map(|n| format!("get,key{}\n", n % 20)).collect();
    let trace = Trace::parse(format!("op,key\n{text}").as_bytes(), None).unwrap();
    let clients: BTreeSet<(Vec<u8>, u64)> = trace
        .requests()
        .iter()
        .map(|request| (trace.key(request).to_vec(), trace.client(request, 4)))
        .collect();
    assert_eq!(clients.len(), 20);
    assert!(clients.iter().map(|(_, client)| client).collect::<BTreeSet<_>>().len() > 1);
}
