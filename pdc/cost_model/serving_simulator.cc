#include "pdc/cost_model/serving_simulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>
#include <utility>

#include "common/check.h"
#include "pdc/cost_model/block_lru.h"
#include "pdc/scheduling/decode_balancer.h"
#include "pdc/scheduling/prefill_scheduler.h"

namespace ems::pdc {
namespace {

// KV grows meanwhile; the cost of an iteration is computed again after this many.
constexpr uint64_t kIterationsAtOnce = 32;

double Quantile(std::vector<double> values, double quantile) {
  if (values.empty()) return 0;
  const size_t at = std::min(values.size() - 1,
                             static_cast<size_t>(quantile * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

enum class EventKind { kPrefillDone, kHandedOff, kDecodeDone };

struct Event {
  double at_s = 0;
  uint64_t order = 0;  // of events at one time: that in which they were made
  EventKind kind = EventKind::kPrefillDone;
  size_t what = 0;  // instance, request, or version of the decode run
  bool operator>(const Event& other) const {
    return at_s != other.at_s ? at_s > other.at_s : order > other.order;
  }
};

class Simulation final {
 public:
  Simulation(const SimulatorOptions& options, std::span<const SimulatedRequest> requests)
      : options_(options),
        requests_(requests),
        prefill_cost_(options.constants),
        decode_cost_(options.constants),
        pool_(options.pool_blocks),
        balancer_({.groups = options.decode_dies,
                   .batch_max = options.decode_batch_max,
                   .kv_tokens_max = options.decode_kv_tokens_max}),
        tokens_per_iteration_(options.mtp ? 1 + options.mtp_acceptance : 1),
        groups_(static_cast<size_t>(options.decode_dies)) {
    EMS_CHECK(options.prefill_instances >= 1, "{} prefill instances", options.prefill_instances);
    result_.requests.resize(requests.size());
    first_token_s_.resize(requests.size());
    group_of_.resize(requests.size(), -1);
    join_iteration_.resize(requests.size());
    for (int i = 0; i < options.prefill_instances; ++i) {
      instances_.emplace_back(PrefillScheduler(
          {.groups = options.prefill.groups(),
           .new_tokens_max = options.prefill_new_tokens_max,
           .queue_max = std::max<size_t>(requests.size(), 1)},
          [this](const Request& r) {
            return prefill_cost_.PromptMs(options_.prefill, static_cast<double>(r.input_tokens),
                                          static_cast<double>(r.cached_tokens));
          }));
    }
  }

  SimulationResult Run() {
    size_t next = 0;
    while (next < requests_.size() || !events_.empty()) {
      const bool arrival = next < requests_.size() &&
                           (events_.empty() || requests_[next].arrival_s <= events_.top().at_s);
      if (arrival) {
        MoveTo(requests_[next].arrival_s);
        Arrive(next++);
        continue;
      }
      const Event event = events_.top();
      events_.pop();
      MoveTo(event.at_s);
      if (event.kind == EventKind::kPrefillDone) EndStep(event.what);
      if (event.kind == EventKind::kHandedOff) Join(event.what);
      if (event.kind == EventKind::kDecodeDone && event.what == run_version_) EndRun();
    }
    result_.end_s = now_s_;
    return std::move(result_);
  }

 private:
  struct Instance {
    explicit Instance(PrefillScheduler s) : scheduler(std::move(s)) {}
    PrefillScheduler scheduler;
    std::vector<size_t> step;  // requests under way
    double free_s = 0;         // end of the step under way
  };
  struct Group {
    double requests = 0;
    double kv_at_zero = 0;  // KV tokens = kv_at_zero + requests · tokens an iteration · iteration
  };
  struct Active {
    uint64_t last_iteration = 0;
    size_t request = 0;
    bool operator>(const Active& other) const {
      return last_iteration != other.last_iteration ? last_iteration > other.last_iteration
                                                    : request > other.request;
    }
  };

  void MoveTo(double at_s) {
    EMS_CHECK(at_s >= now_s_, "an event at {} s after {} s", at_s, now_s_);
    now_s_ = at_s;
  }
  void Push(double at_s, EventKind kind, size_t what) {
    events_.push({at_s, next_order_++, kind, what});
  }

  Request View(size_t i) const {
    const SimulatedRequest& r = requests_[i];
    return {.id = i,
            .input_tokens = r.input_tokens,
            .cached_tokens = result_.requests[i].cached_tokens,
            .output_tokens = r.output_tokens};
  }

  // Looks up, and joins the queue of the instance that would be through first.
  void Arrive(size_t i) {
    const SimulatedRequest& r = requests_[i];
    EMS_CHECK(r.input_tokens >= 1 && r.output_tokens >= 1, "request {}: {} + {} tokens", i,
              r.input_tokens, r.output_tokens);
    uint64_t cached = r.cached_tokens;
    if (!r.blocks.empty()) cached = pool_.LeadingHits(r.blocks) * options_.named_block_tokens;
    result_.requests[i].cached_tokens = std::min(cached, r.input_tokens - 1);
    if (balancer_.NeverFits(View(i))) {
      result_.requests[i].refused = true;
      result_.refused += 1;
      return;
    }
    size_t best = 0;
    double best_ms = -1;
    for (size_t k = 0; k < instances_.size(); ++k) {
      const double ms = 1e3 * std::max(0.0, instances_[k].free_s - now_s_) +
                        instances_[k].scheduler.queued_cost() / options_.prefill.groups();
      if (best_ms >= 0 && ms >= best_ms) continue;
      best = k;
      best_ms = ms;
    }
    const Status queued = instances_[best].scheduler.Enqueue(View(i));
    EMS_CHECK(queued.ok(), "{}", Message(queued));
    if (instances_[best].step.empty()) StartStep(best);
  }

  void StartStep(size_t k) {
    Instance& instance = instances_[k];
    std::vector<PrefillWork> work;
    for (const std::vector<Request>& group : instance.scheduler.NextStep()) {
      PrefillWork sum;
      for (const Request& r : group) {
        sum.Add(static_cast<double>(r.input_tokens), static_cast<double>(r.cached_tokens));
        instance.step.push_back(static_cast<size_t>(r.id));
      }
      work.push_back(sum);
    }
    if (instance.step.empty()) return;
    const double ms = prefill_cost_.Step(options_.prefill, work).total_ms() +
                      options_.constants.scheduling.step_gap_ms;
    instance.free_s = now_s_ + ms * 1e-3;
    result_.prefill_busy_s += ms * 1e-3;
    result_.prefill_steps += 1;
    Push(instance.free_s, EventKind::kPrefillDone, k);
  }

  void EndStep(size_t k) {
    const size_t waiting_before = waiting_.size();
    for (const size_t i : std::exchange(instances_[k].step, {})) {
      const SimulatedRequest& r = requests_[i];
      first_token_s_[i] = now_s_;
      result_.requests[i].ttft_s = now_s_ - r.arrival_s;
      pool_.Insert(r.blocks);
      if (r.output_tokens == 1)
        Serve(i);
      else
        waiting_.push_back(i);
    }
    const size_t finished = waiting_.size() - waiting_before;
    PlaceWaiting();
    result_.hand_offs_held_back += std::min(finished, waiting_.size());
    StartStep(k);
  }

  // Hand-offs start in order, each when decode has room for all of its KV.
  void PlaceWaiting() {
    while (!waiting_.empty()) {
      const size_t i = waiting_.front();
      const std::optional<int> group = balancer_.Place(View(i));
      if (!group) return;
      waiting_.pop_front();
      group_of_[i] = *group;
      const double seconds =
          prefill_cost_.kv().HandOffSeconds(static_cast<double>(requests_[i].input_tokens));
      Push(now_s_ + seconds, EventKind::kHandedOff, i);
    }
  }

  // A request's KV has arrived: it is in the batch from the next iteration on.
  void Join(size_t i) {
    joining_.push_back(i);
    if (!running_) {
      StartRun();
      return;
    }
    const double done = std::floor((now_s_ - run_start_s_) / run_iteration_s_) + 1;
    const uint64_t iterations = static_cast<uint64_t>(done);
    if (iterations >= run_iterations_) return;
    run_iterations_ = iterations;
    Push(RunEnd(), EventKind::kDecodeDone, ++run_version_);
  }

  double RunEnd() const {
    return std::max(now_s_, run_start_s_ + static_cast<double>(run_iterations_) * run_iteration_s_);
  }

  void StartRun() {
    for (const size_t i : std::exchange(joining_, {})) {
      const double iterations =
          std::ceil(static_cast<double>(requests_[i].output_tokens - 1) / tokens_per_iteration_);
      active_.push({iteration_ + static_cast<uint64_t>(iterations), i});
      Group& group = groups_[static_cast<size_t>(group_of_[i])];
      group.requests += 1;
      group.kv_at_zero += static_cast<double>(requests_[i].input_tokens) -
                          tokens_per_iteration_ * static_cast<double>(iteration_);
      join_iteration_[i] = iteration_;
    }
    running_ = !active_.empty();
    if (!running_) return;
    run_iterations_ = std::min(kIterationsAtOnce, active_.top().last_iteration - iteration_);
    run_iteration_s_ = IterationSeconds();
    run_start_s_ = now_s_;
    Push(RunEnd(), EventKind::kDecodeDone, ++run_version_);
  }

  // All dies meet at each expert layer: attention is that of the die with the most KV, the experts
  // have the mean batch.
  double IterationSeconds() const {
    const double grown = tokens_per_iteration_ * static_cast<double>(iteration_);
    double kv_most = 0;
    for (const Group& group : groups_)
      kv_most = std::max(kv_most, group.kv_at_zero + group.requests * grown);
    const double mean = static_cast<double>(active_.size()) / options_.decode_dies;
    return 1e-3 * decode_cost_
                      .Iteration({.expert_ranks = options_.decode_dies,
                                  .requests_per_die = mean,
                                  .kv_tokens = kv_most / mean,
                                  .mtp = options_.mtp,
                                  .mtp_acceptance = options_.mtp_acceptance,
                                  .microbatching = options_.decode_microbatching})
                      .iteration_ms;
  }

  void EndRun() {
    const double seconds = now_s_ - run_start_s_;
    iteration_ += run_iterations_;
    result_.decode_iterations += run_iterations_;
    result_.decode_busy_s += seconds;
    result_.decode_request_seconds += seconds * static_cast<double>(active_.size());
    while (!active_.empty() && active_.top().last_iteration <= iteration_) {
      const size_t i = active_.top().request;
      active_.pop();
      Group& group = groups_[static_cast<size_t>(group_of_[i])];
      group.requests -= 1;
      group.kv_at_zero -= static_cast<double>(requests_[i].input_tokens) -
                          tokens_per_iteration_ * static_cast<double>(join_iteration_[i]);
      const bool was_placed = balancer_.Remove(i);
      EMS_CHECK(was_placed, "request {} was in no group", i);
      Serve(i);
    }
    PlaceWaiting();
    StartRun();
  }

  void Serve(size_t i) {
    const SimulatedRequest& r = requests_[i];
    ServedRequest& served = result_.requests[i];
    EMS_CHECK(served.end_s == 0, "request {} was served twice", i);
    served.end_s = now_s_;
    if (r.output_tokens > 1)
      served.tpot_s = (now_s_ - first_token_s_[i]) / static_cast<double>(r.output_tokens - 1);
    result_.served += 1;
    result_.input_tokens += r.input_tokens;
    result_.cached_tokens += served.cached_tokens;
    result_.output_tokens += r.output_tokens;
  }

  const SimulatorOptions& options_;
  const std::span<const SimulatedRequest> requests_;
  const PrefillCost prefill_cost_;
  const DecodeCost decode_cost_;
  BlockLru pool_;
  DecodeBalancer balancer_;
  const double tokens_per_iteration_;
  std::deque<Instance> instances_;
  SimulationResult result_;
  std::vector<double> first_token_s_;
  std::vector<int> group_of_;
  double now_s_ = 0;
  uint64_t next_order_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  // Decode.
  std::deque<size_t> waiting_;   // prefilled, no group yet
  std::vector<size_t> joining_;  // KV is there, iteration under way
  std::priority_queue<Active, std::vector<Active>, std::greater<>> active_;
  std::vector<Group> groups_;
  std::vector<uint64_t> join_iteration_;
  uint64_t iteration_ = 0;
  bool running_ = false;
  size_t run_version_ = 0;
  uint64_t run_iterations_ = 0;
  double run_start_s_ = 0, run_iteration_s_ = 0;
};

template <typename Field>
std::vector<double> Collect(const SimulationResult& result, Field field) {
  std::vector<double> values;
  for (const ServedRequest& r : result.requests)
    if (!r.refused && field(r) > 0) values.push_back(field(r));
  return values;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double Ttft(const ServedRequest& r) { return r.ttft_s; }
double Tpot(const ServedRequest& r) { return r.tpot_s; }

}  // namespace

double SimulationResult::mean_ttft_s() const { return Mean(Collect(*this, Ttft)); }
double SimulationResult::mean_tpot_s() const { return Mean(Collect(*this, Tpot)); }
double SimulationResult::ttft_quantile_s(double quantile) const {
  return Quantile(Collect(*this, Ttft), quantile);
}
double SimulationResult::tpot_quantile_s(double quantile) const {
  return Quantile(Collect(*this, Tpot), quantile);
}

SimulationResult Simulate(const SimulatorOptions& options,
                          std::span<const SimulatedRequest> requests) {
  return Simulation(options, requests).Run();
}

}  // namespace ems::pdc
