#pragma once
// The one door to prometheus-cpp: counters, gauges and histograms, rendered as Prometheus text.
// Each daemon declares its metrics once, in one *_metrics struct with help texts; logic calls verbs
// on that struct.
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"

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
  // A counter that is not shown before it has counted something: for labels most combinations of
  // which never happen.
  Counter AddSparseCounter(const std::string& name, const std::string& help, const Labels& labels);
  // A counter whose count is kept elsewhere: Set it before each rendering.
  Gauge AddShownCounter(const std::string& name, const std::string& help,
                        const Labels& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         const std::vector<double>& buckets, const Labels& labels = {});
  // What `append` writes is a part of each rendering: histograms of latencies, for one. Before the
  // first one.
  void AddText(std::function<void(std::string*)> append) { texts_.push_back(std::move(append)); }
  // Prometheus text format 0.0.4.
  std::string Render() const;

 private:
  struct Names {
    std::set<std::pair<std::string, Labels>> sparse;  // not shown before they have counted
    std::set<std::string> shown;                      // of counters that are kept as gauges
  };
  mutable Guarded<Names> names_;
  std::vector<std::function<void(std::string*)>> texts_;
  std::unique_ptr<prometheus::Registry> registry_;
};

}  // namespace ems
