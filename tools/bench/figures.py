"""What benchmarks make of samples in microseconds. No more than a bare python3 needs: tools/bench/handoff_gpu runs on one."""


def percentile(values, percent):
    return sorted(values)[int((len(values) - 1) * percent / 100 + 0.5)]


def summary(samples):
    return {"p50_us": round(percentile(samples, 50), 1), "p95_us": round(percentile(samples, 95), 1),
            "mean_us": round(sum(samples) / len(samples), 1), "transfers": len(samples)}
