use super::evidence::even_sample;

#[test]
fn sample_is_spread_evenly() {
    let names: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    assert_eq!(even_sample(&names, 3), ["0", "3", "6"]);
    assert_eq!(even_sample(&names, 99), names);
    assert!(even_sample(&[], 3).is_empty());
}
