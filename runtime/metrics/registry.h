#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

namespace latentd::metrics {

using Counter = prometheus::Counter;
using Gauge = prometheus::Gauge;
using Histogram = prometheus::Histogram;
using Buckets = std::vector<double>;

// One metric name with its label names fixed, so that no caller can forget or misspell one. A cheap handle of the
// registry's, valid as long as that lives. Thread: any; with() takes a lock, so keep its result where calls are many.
template <class Metric, size_t kLabels>
class Family {
 public:
  using LabelNames = std::array<std::string_view, kLabels>;

  Family(prometheus::Family<Metric>& family, LabelNames names, Buckets buckets = {})
      : family_(&family), names_(names), buckets_(std::move(buckets)) {}

  // The metric of these label values, in the order of the names; made on first use, valid as long as the registry.
  template <std::convertible_to<std::string_view>... Values>
  requires(sizeof...(Values) == kLabels) Metric& with(const Values&... values) {
    const std::array<std::string_view, kLabels> texts{std::string_view(values)...};
    prometheus::Labels labels;
    for (size_t i = 0; i < kLabels; ++i)
      labels.emplace(names_[i], texts[i]);
    if constexpr (std::same_as<Metric, Histogram>) {
      return family_->Add(labels, buckets_);
    } else {
      return family_->Add(labels);
    }
  }

 private:
  prometheus::Family<Metric>* family_;
  LabelNames names_;
  Buckets buckets_;
};

template <size_t kLabels>
using Counters = Family<Counter, kLabels>;
template <size_t kLabels>
using Gauges = Family<Gauge, kLabels>;
template <size_t kLabels>
using Histograms = Family<Histogram, kLabels>;

// Everything that one process exports. Components register plain structs of metrics (component_metrics.h) in their
// constructors; names are latentd_<what>_<unit>, in base units, counters end in _total, labels come from closed sets
// and never name a job. Owner: the main; it outlives every component. Thread: any. Failure: a name that is registered
// twice aborts.
class Registry {
 public:
  Registry();

  template <class... Names>
  auto counters(const std::string& name, const std::string& help, Names... label_names) {
    return Counters<sizeof...(Names)>(addCounter(name, help), {std::string_view(label_names)...});
  }
  template <class... Names>
  auto gauges(const std::string& name, const std::string& help, Names... label_names) {
    return Gauges<sizeof...(Names)>(addGauge(name, help), {std::string_view(label_names)...});
  }
  template <class... Names>
  auto histograms(const std::string& name, const std::string& help, const Buckets& buckets, Names... label_names) {
    return Histograms<sizeof...(Names)>(addHistogram(name, help), {std::string_view(label_names)...}, buckets);
  }
  Counter& counter(const std::string& name, const std::string& help) { return counters(name, help).with(); }
  Gauge& gauge(const std::string& name, const std::string& help) { return gauges(name, help).with(); }
  Histogram& histogram(const std::string& name, const std::string& help, const Buckets& buckets) {
    return histograms(name, help, buckets).with();
  }

  // Prometheus' text format, version 0.0.4. Calls the refreshers first.
  std::string expose() const;
  // For gauges of values that change by themselves: `refresh` sets them when somebody looks. Before anyone does; what
  // it uses lives as long as expose() may be called.
  void beforeExpose(std::function<void()> refresh) { refreshers_.push_back(std::move(refresh)); }

 private:
  prometheus::Family<Counter>& addCounter(const std::string& name, const std::string& help);
  prometheus::Family<Gauge>& addGauge(const std::string& name, const std::string& help);
  prometheus::Family<Histogram>& addHistogram(const std::string& name, const std::string& help);

  prometheus::Registry registry_;
  std::vector<std::function<void()>> refreshers_;
};

}  // namespace latentd::metrics
