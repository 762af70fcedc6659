#pragma once
// The one door to prometheus-cpp: counters, gauges and histograms, rendered as Prometheus text.
// Each daemon declares its metrics once, in one *_metrics struct with help texts; logic calls verbs
// on that struct.
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
}  // namespace prometheus

namespace ems {

using Labels = std::map<std::string, std::string>;

// Handles are as cheap as a pointer and live as long as their registry. Add/Set/Observe: one or two
// relaxed atomics. Threading: thread-safe.
class Counter final {
 public:
  Counter() = default;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  void Add(double by = 1) const;
  double value() const;

 private:
  prometheus::Counter* counter_ = nullptr;
};

class Gauge final {
 public:
  Gauge() = default;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value) const;
  void Add(double by) const;
  double value() const;

 private:
  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram final {
 public:
  Histogram() = default;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value) const;

 private:
  prometheus::Histogram* histogram_ = nullptr;
};

// Threading: thread-safe.
class MetricsRegistry final {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  // The same name and labels give the same metric. Labels must be bounded: namespace, tier, op,
  // code; never keys.
  Counter AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         const std::vector<double>& buckets, const Labels& labels = {});
  // Prometheus text format 0.0.4.
  std::string Render() const;

 private:
  std::unique_ptr<prometheus::Registry> registry_;
};

}  // namespace ems
