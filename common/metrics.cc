#include "common/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace ems {

void Counter::Add(double by) const {
  if (counter_ != nullptr) counter_->Increment(by);
}
double Counter::value() const { return counter_ == nullptr ? 0 : counter_->Value(); }

void Gauge::Set(double value) const {
  if (gauge_ != nullptr) gauge_->Set(value);
}
void Gauge::Add(double by) const {
  if (gauge_ != nullptr) gauge_->Increment(by);
}
double Gauge::value() const { return gauge_ == nullptr ? 0 : gauge_->Value(); }

void Histogram::Observe(double value) const {
  if (histogram_ != nullptr) histogram_->Observe(value);
}

MetricsRegistry::MetricsRegistry()
    : registry_(
          std::make_unique<prometheus::Registry>(prometheus::Registry::InsertBehavior::Merge)) {}
MetricsRegistry::~MetricsRegistry() = default;

Counter MetricsRegistry::AddCounter(const std::string& name, const std::string& help,
                                    const Labels& labels) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(*registry_);
  return Counter(&family.Add(labels));
}

Gauge MetricsRegistry::AddGauge(const std::string& name, const std::string& help,
                                const Labels& labels) {
  auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(*registry_);
  return Gauge(&family.Add(labels));
}

Histogram MetricsRegistry::AddHistogram(const std::string& name, const std::string& help,
                                        const std::vector<double>& buckets, const Labels& labels) {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_);
  return Histogram(&family.Add(labels, buckets));
}

std::string MetricsRegistry::Render() const {
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

}  // namespace ems
