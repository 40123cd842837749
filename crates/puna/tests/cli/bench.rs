//! `puna bench`.

use crate::kit::{Puna, data};

#[test]
fn bench_reports_speeds_as_fractions_of_the_limits() {
    let puna = Puna::new();
    let plot = puna.home.path().join("p.svg");
    let args = [
        "bench", "cria", "-p", "32", "-n", "4", "-r", "1", "-d", "0,16", "-b", "1,2", "--ops",
        "--json",
    ];
    let result = puna.json(&[&args[..], &["--plot", plot.to_str().unwrap()]].concat());
    assert!(result["machine"]["read_gbs"].as_f64().unwrap() > 0.1);
    assert!(result["machine"]["int8_gmacs"].as_f64().unwrap() > 0.1);
    let results = result["results"].as_array().unwrap();
    assert_eq!(results.len(), 8);
    for test in results {
        assert!(test["tokens_per_second"].as_f64().unwrap() > 0.0, "{test}");
        assert!(
            test["limit_share"].as_f64().unwrap() > 0.0
                && !test["ops"].as_array().unwrap().is_empty(),
            "{test}"
        );
    }
    let plot = std::fs::read_to_string(plot).unwrap();
    assert!(
        plot.contains("pp32") && plot.contains("tg4 @ d16 × 2") && plot.ends_with("</svg>\n"),
        "{plot}"
    );
    let file = puna.home.path().join("base.json");
    std::fs::write(&file, result.to_string()).unwrap();
    let again = puna.json(&[
        "bench",
        "cria",
        "-p",
        "32",
        "-n",
        "0",
        "-r",
        "1",
        "--compare",
        file.to_str().unwrap(),
        "--json",
    ]);
    assert!(again["results"][0]["ratio"].as_f64().unwrap() > 0.0);
}

#[test]
fn bench_measures_next_to_a_busy_process_and_counts_memory() {
    let puna = Puna::new();
    let args =
        ["bench", "cria", "-p", "0", "-n", "4", "-r", "1", "--busy", "1", "--memory", "--json"];
    let result = puna.json(&args);
    let tests: Vec<&str> =
        result["results"].as_array().unwrap().iter().map(|r| r["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["tg4", "tg4, 1 busy"]);
    let busy = &result["results"][1];
    assert!(
        busy["kept"].as_f64().unwrap() > 0.0 && busy["fair_share"].as_f64().unwrap() <= 1.0,
        "{busy}"
    );
    if cfg!(target_os = "linux") {
        // With the smallest model, the remaining memory is mostly that of the program itself.
        let beyond = result["memory"]["beyond"].as_u64().unwrap();
        assert!((1 << 20..256 << 20).contains(&beyond), "{}", result["memory"]);
    }
    let (status, text) = puna.fails(&["bench", "cria", "-p", "0", "-n", "0", "--start"]);
    assert!(
        status == 1
            && text.ends_with("cria:latest is embedded in this program: --start needs a file\n"),
        "{text}"
    );
}

#[test]
fn bench_refuses_numbers_above_the_context() {
    let puna = Puna::new();
    let max = u64::MAX.to_string();
    for numbers in [["-p", "8", "-d", &max], ["-p", &max, "-d", "1"], ["-p", "8", "-b", &max]] {
        let (status, text) = puna.fails(&[&["bench", "cria", "-n", "0"], &numbers[..]].concat());
        assert!(
            status == 1
                && (text.contains("more tokens than the context")
                    || text.contains("exceed the limit"))
                && text.lines().count() == 1,
            "{numbers:?}: {text}"
        );
    }
}

#[test]
fn bench_embeds_texts_of_mixed_lengths() {
    let puna = Puna::new();
    let path = data("zoo/bert-mean.gguf");
    let args = ["bench", path.to_str().unwrap(), "-b", "4", "-r", "1", "--ops", "--json"];
    let result = puna.json(&args);
    let test = &result["results"][0];
    assert_eq!((&test["embed"], &test["sequences"]), (&true.into(), &4.into()));
    assert!(
        test["texts_per_second"].as_f64().unwrap() > 0.0
            && test["macs_per_token"].as_f64().unwrap() > 0.0,
        "{test}"
    );
}
