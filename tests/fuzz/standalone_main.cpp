// Runs a fuzz target without libFuzzer: its seeds, then seeded mutations of them. A finding is a crash,
// an abort or a sanitizer report, and the input that led to it is named before it runs.
//
//   x_fuzz FOLDER-OR-FILE… [--mutations N] [--seed S]
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <signal.h>
#include <unistd.h>

#include "net/philox.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

namespace fs = std::filesystem;
using Input = std::vector<std::uint8_t>;

constexpr std::size_t max_size = std::size_t{1} << 16U;

/// What runs now, for the handler of a crash.
volatile std::uint64_t current_seed = 0;
volatile std::uint64_t current_round = 0;

void on_crash(int number) {
  char text[] = "\nfuzz target died at seed 00000000000000000000 round 00000000000000000000\n";
  const auto put = [&](std::size_t end, std::uint64_t value) {
    for (std::size_t i = 0; i < 20; ++i, value /= 10) {
      text[end - 1 - i] = static_cast<char>('0' + value % 10);
    }
  };
  put(46, current_seed);
  put(sizeof text - 2, current_round);
  [[maybe_unused]] const auto ignored = write(STDERR_FILENO, text, sizeof text - 1);
  signal(number, SIG_DFL);
  raise(number);
}

Input read_file(const fs::path& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// All files in a fixed order, so that a round means the same input everywhere.
std::vector<Input> load(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const auto& path : paths) {
    if (fs::is_directory(path)) {
      for (const auto& entry : fs::directory_iterator{path}) {
        files.push_back(entry.path());
      }
    } else if (fs::exists(path)) {
      files.emplace_back(path);
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Input> inputs;
  for (const auto& file : files) {
    inputs.push_back(read_file(file));
  }
  return inputs;
}

/// Numbers at which parsers of lengths tend to break.
constexpr std::uint64_t interesting[] = {
    0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, ~0ULL >> 1, ~0ULL};

std::size_t position(troupe::PhiloxStream& random, std::size_t bound) {
  return static_cast<std::size_t>(random.below(bound));
}

void mutate_once(Input& input, const std::vector<Input>& seeds, troupe::PhiloxStream& random) {
  const auto kind = random.below(7);
  if (input.empty() || kind == 0) {  // insert noise
    const auto at = position(random, input.size() + 1);
    Input noise(1 + position(random, 16));
    std::generate(noise.begin(), noise.end(), [&] { return static_cast<std::uint8_t>(random()); });
    input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), noise.begin(), noise.end());
    return;
  }
  const auto at = position(random, input.size());
  const auto length = 1 + position(random, std::min<std::size_t>(input.size() - at, 64));
  const auto first = input.begin() + static_cast<std::ptrdiff_t>(at);
  const auto last = first + static_cast<std::ptrdiff_t>(length);
  switch (kind) {
    case 1:  // flip one bit
      input[at] = static_cast<std::uint8_t>(input[at] ^ (1U << random.below(8)));
      break;
    case 2:  // cut off
      input.resize(at);
      break;
    case 3:  // take a part out
      input.erase(first, last);
      break;
    case 4: {  // repeat a part
      const Input part(first, last);
      input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), part.begin(), part.end());
      break;
    }
    case 5: {  // a number at its edge, little or big endian
      const std::uint64_t value = interesting[position(random, std::size(interesting))];
      const std::size_t width = std::size_t{1} << random.below(4);
      const bool big = random.below(2) == 0;
      for (std::size_t i = 0; i < width && at + i < input.size(); ++i) {
        const std::size_t shift = 8 * (big ? width - 1 - i : i);
        input[at + i] = static_cast<std::uint8_t>(value >> shift);
      }
      break;
    }
    default: {  // the end of another seed
      const Input& other = seeds[position(random, seeds.size())];
      const auto from = other.empty() ? 0 : position(random, other.size());
      input.resize(at);
      input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      break;
    }
  }
}

Input mutated(const std::vector<Input>& seeds, std::uint64_t seed, std::uint64_t round) {
  troupe::PhiloxStream random{seed, static_cast<std::uint32_t>(round >> 32U),
                              static_cast<std::uint32_t>(round)};
  Input input = seeds[position(random, seeds.size())];
  const auto times = 1 + random.below(8);
  for (std::uint64_t i = 0; i < times; ++i) {
    mutate_once(input, seeds, random);
  }
  input.resize(std::min(input.size(), max_size));
  return input;
}

/// Runs a copy of exactly its size on the heap, so that ASan sees a read past the end.
void run(const Input& input) {
  const Input exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t mutations = 5000;
  std::uint64_t seed = 1;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--mutations" && i + 1 < argc) {
      mutations = std::strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      paths.push_back(argument);
    }
  }
  for (const int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
    signal(number, on_crash);
  }
  auto seeds = load(paths);
  for (const auto& input : seeds) {
    run(input);
  }
  std::cout << seeds.size() << " seeds pass" << std::endl;
  seeds.emplace_back();  // the empty input is always one
  current_seed = seed;
  for (std::uint64_t round = 0; round < mutations; ++round) {
    current_round = round;
    run(mutated(seeds, seed, round));
  }
  std::cout << mutations << " mutations pass" << std::endl;
  return 0;
}
