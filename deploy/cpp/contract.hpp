// What the program needs of contract.json.
#pragma once

#include <string>
#include <vector>

#include "image.hpp"

struct Contract {
  std::vector<std::string> classes;
  int channels = 0;
  int height = 0;
  int width = 0;
  Limits limits;
};

// Return the contract in that file; raises Refused if it is none, or wants another preprocessing than this program has.
Contract read_contract(const std::string &path);
