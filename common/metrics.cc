#include "common/metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace ems {
namespace {

void ShowAsCounter(prometheus::MetricFamily* family) {
  family->type = prometheus::MetricType::Counter;
  for (prometheus::ClientMetric& one : family->metric) one.counter.value = one.gauge.value;
}

Labels LabelsOf(const prometheus::ClientMetric& one) {
  Labels labels;
  for (const auto& label : one.label) labels.emplace(label.name, label.value);
  return labels;
}

}  // namespace

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

Counter MetricsRegistry::AddSparseCounter(const std::string& name, const std::string& help,
                                          const Labels& labels) {
  {
    auto names = names_.Lock();
    names->sparse.emplace(name, labels);
  }
  return AddCounter(name, help, labels);
}

Gauge MetricsRegistry::AddShownCounter(const std::string& name, const std::string& help,
                                       const Labels& labels) {
  {
    auto names = names_.Lock();
    names->shown.insert(name);
  }
  return AddGauge(name, help, labels);
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
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  {
    auto names = names_.Lock();
    for (prometheus::MetricFamily& family : families) {
      if (names->shown.contains(family.name)) ShowAsCounter(&family);
      if (family.type != prometheus::MetricType::Counter) continue;
      std::erase_if(family.metric, [&](const prometheus::ClientMetric& one) {
        return one.counter.value == 0 && names->sparse.contains({family.name, LabelsOf(one)});
      });
    }
  }
  std::erase_if(families, [](const auto& family) { return family.metric.empty(); });
  std::string text = prometheus::TextSerializer().Serialize(families);
  for (const auto& append : texts_) append(&text);
  return text;
}

}  // namespace ems
