#include "runtime/metrics/registry.h"

#include <prometheus/text_serializer.h>

namespace latentd::metrics {

Registry::Registry() : registry_(prometheus::Registry::InsertBehavior::Throw) {}

prometheus::Family<Counter>& Registry::addCounter(const std::string& name, const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
}

prometheus::Family<Gauge>& Registry::addGauge(const std::string& name, const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
}

prometheus::Family<Histogram>& Registry::addHistogram(const std::string& name, const std::string& help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
}

std::string Registry::expose() const {
  for (const auto& refresh : refreshers_)
    refresh();
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

}  // namespace latentd::metrics
